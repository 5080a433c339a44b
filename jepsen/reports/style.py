"""The style sheet of the report: two sets of colours, for light and for dark."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c2128; --soft: #59636e; --line: #d8dee4; --card: #f6f8fa;
  --ok: #2869c4; --fail: #b4690e; --info: #c22f6b; --shade: #b4231814; --fault: #c9453a;
  --kept: #1a7f45; --broken: #c22f2f; --unknown: #8a6100;
  --n0: #4c78c9; --n1: #2f9a8f; --n2: #8a63c4; --n3: #c07a2c; --n4: #6d8a3a; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --ink: #e4e9ee; --soft: #9aa6b2; --line: #323a43;
  --card: #1d232a; --ok: #6aa6f5; --fail: #e3a14a; --info: #f47fab; --shade: #ff6b5e1c; --fault: #d9584c;
  --kept: #4fc07f; --broken: #ff7b72; --unknown: #e0b04a;
  --n0: #3f66ab; --n1: #257d74; --n2: #6f4fa3; --n3: #9a6224; --n4: #58702f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
header { border-left: 8px solid var(--unknown); background: var(--card); padding: 16px 22px; border-radius: 6px; }
header.valid { border-color: var(--kept); } header.invalid { border-color: var(--broken); }
header .what { margin: 0; color: var(--soft); }
h1 { margin: 2px 0 6px; font-size: 27px; } header.valid h1 { color: var(--kept); }
header.invalid h1 { color: var(--broken); } header.unknown h1, header.skipped h1 { color: var(--unknown); }
header p { margin: 4px 0; max-width: 90ch; } header .why { font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 34px 0 8px; } h3 { font-size: 14px; margin: 18px 0 4px; color: var(--soft); }
.charts { overflow-x: auto; } svg { display: block; width: 100%; min-width: 720px; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); dominant-baseline: middle; }
text.lane { text-anchor: end; } text.tick { text-anchor: middle; }
text.inside { text-anchor: middle; fill: #fff; } text.middle { text-anchor: middle; }
.phase { fill: var(--card); stroke: var(--line); }
.grid { stroke: var(--line); stroke-dasharray: 2 4; } .axis { stroke: var(--soft); }
.shade { fill: var(--shade); } .fault { fill: var(--fault); }
.node0 { fill: var(--n0); } .node1 { fill: var(--n1); } .node2 { fill: var(--n2); } .node3 { fill: var(--n3); }
.node4 { fill: var(--n4); }
.point { fill: none; stroke-linecap: round; stroke-width: 2.6; }
.point.ok { stroke: var(--ok); stroke-opacity: .65; }
.point.fail { stroke: var(--fail); stroke-width: 5; stroke-linecap: square; }
.point.info { stroke: var(--info); stroke-width: 6; }
.bar.ok { fill: var(--ok); } .bar.fail { fill: var(--fail); } .bar.info { fill: var(--info); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; color: var(--soft); margin-bottom: 8px; }
.key::before { content: ""; display: inline-block; width: 11px; height: 11px; margin-right: 7px; border-radius: 6px; }
.key.ok::before { background: var(--ok); } .key.fail::before { background: var(--fail); border-radius: 0; }
.key.info::before { background: var(--info); }
.key.shade::before { background: var(--fault); border-radius: 2px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin: 6px 0; }
th { text-align: left; color: var(--soft); font-weight: 600; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { white-space: nowrap; } td.number, th.number { text-align: right; padding-right: 24px; }
.mark { font-weight: 600; white-space: nowrap; } .mark.kept { color: var(--kept); }
.mark.broken { color: var(--broken); } .mark.unknown { color: var(--unknown); }
.anomaly { border-left: 4px solid var(--broken); padding: 2px 0 2px 14px; margin: 12px 0; }
.anomaly summary { cursor: pointer; } .anomaly b { color: var(--broken); } small { color: var(--soft); }
table.ops { font: 12px/1.45 ui-monospace, monospace; } tr.own td { background: var(--card); font-weight: 700; }
tr.info td:nth-child(4) { color: var(--info); } tr.fail td:nth-child(4) { color: var(--fail); }
pre { background: var(--card); padding: 12px 14px; border-radius: 6px; overflow-x: auto; white-space: pre-wrap; }
@media print { body { font-size: 12px; } main { max-width: none; padding: 0; } }
"""
