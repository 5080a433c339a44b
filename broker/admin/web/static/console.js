// Brings the part #live of a page up to date. Pages are whole without it.
"use strict";
(() => {
  const first = document.getElementById("live");
  const seconds = first ? Number(first.dataset.refreshS) : 0;
  if (!(seconds > 0)) return;
  const within = 10000;

  async function refresh() {
    const live = document.getElementById("live");
    const isInUse = () => live.contains(document.activeElement);
    if (document.hidden || isInUse()) return;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(within) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("live");
      if (!next) throw new Error("not a page of the console");
      if (isInUse()) return; // somebody has begun while the answer was under way
      const banner = page.getElementById("banner");
      const old = document.getElementById("banner");
      if (banner && old && (banner.textContent !== old.textContent || banner.className !== old.className)) {
        old.textContent = banner.textContent;
        old.className = banner.className;
      }
      const scrolled = [...live.querySelectorAll(".wide")].map((each) => each.scrollLeft);
      live.replaceWith(document.adoptNode(next));
      [...next.querySelectorAll(".wide")].forEach((each, place) => {
        each.scrollLeft = scrolled[place] || 0;
      });
    } catch {
      const banner = document.getElementById("banner");
      if (!banner) return;
      banner.textContent = "The console does not answer: what is shown is old.";
      banner.className = "banner bad";
    }
  }

  async function keep() {
    for (;;) {
      await new Promise((done) => setTimeout(done, 1000 * seconds));
      await refresh();
    }
  }
  keep();
})();
