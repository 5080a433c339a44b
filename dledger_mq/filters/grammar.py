"""The grammar of filters (H2 to H6), as lark reads it (adr/0231). Data only.

It is LALR(1): reading a text takes time and memory in proportion to its length, and recurses nowhere.
"""

from __future__ import annotations

from typing import Final

KEYWORDS: Final = (
    "NOT",
    "AND",
    "OR",
    "BETWEEN",
    "IN",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
)

_RULES: Final = r"""
?filter: disjunction
?disjunction: conjunction (OR conjunction)*
?conjunction: equality (AND equality)*
?equality: compared
    | equality EQUAL compared -> equality
    | equality UNEQUAL compared -> inequality
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?compared: unary
    | compared ORDER unary -> comparison
    | compared BETWEEN unary AND unary -> between
    | compared NOT BETWEEN unary AND unary -> not_between
    | compared IN "(" TEXT ("," TEXT)* ")" -> membership
    | compared NOT IN "(" TEXT ("," TEXT)* ")" -> membership
    | compared NOT? (CONTAINS | STARTSWITH | ENDSWITH) TEXT -> search
?unary: primary
    | NOT unary -> negation
    | "-" unary -> negative
    | "+" unary
?primary: NAME -> name
    | TEXT -> text
    | INTEGER -> integer
    | FLOAT -> float
    | TRUE -> true
    | FALSE -> false
    | "(" disjunction ")" -> nested

EQUAL: "="
UNEQUAL.2: "<>"
ORDER: ">=" | "<=" | ">" | "<"
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
TEXT: /'(?:''|[^'])*'/
INTEGER: /0|[1-9][0-9]*[lL]?/
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
COMMENT.3: /--[^\n\r]*/ | /\/\*(?:[^*]|\*(?!\/))*\*\//
BLANK: /[ \t\r\n\f]+/
%ignore COMMENT
%ignore BLANK
"""

GRAMMAR: Final = _RULES + "".join(f"{word}.4: /{word}(?![A-Za-z0-9_$])/i\n" for word in KEYWORDS)
"""Keywords are told from names that begin like them by what follows."""
