"""Keys that are known by the prefix their vendor gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

# Each by its head, a blank, and the rest of it. A head ends in one of _RARE (see there).
_KEYS = r"""
A[KS]IA [A-Z0-9]{12,}
AIz a[\w-]{10,}
AGE- SECRET-KEY-1\w{10,}
ATATT 3[\w=-]{20,}
ATCTT 3[\w=-]{20,}
APP_ USR-\d{6,}-\d{6}-[0-9a-f]{16,}[\w-]*
AstraC S:\w+:[0-9a-f]{16,}
A21AA [\w-]{40,}
AQ E[a-z][A-Za-z0-9+/_-]{40,}
AccountKey= [A-Za-z0-9+/]{40,}=*
CFPAT- [\w-]{20,}
EAA [A-Za-z][\w-]{30,}
FlyV 1[ ][\w,+/=-]{20,}
GOCSPX- [\w-]{16,}
HRKU- [\w-]{20,}
NRAK- [A-Z0-9]{20,}
PMAK- [\w-]{30,}
SG\. [\w-]{16,}\.[\w-]{16,}
SharedAccessKey= [A-Za-z0-9+/]{30,}=*
TEST- \d{6,}-\d{6}-[0-9a-f]{16,}[\w-]*
access- (?:sandbox|production|development)-[0-9a-f-]{30,}
access_token\$ (?:production|sandbox)\$[\w$]{16,}
dckr_ pat_[\w-]{16,}
discord(?:app|)\. com/api/webhooks/\d+/[\w-]{30,}
do[oprt]_ v1_[0-9a-f]{32,}
dp\. (?:pt|st|sa|ct|scim|audit|said)\.[\w.-]{16,}
figd_ [\w-]{20,}
gh[oprsu]_ \w{8,}
github_ pat_\w{8,}
gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)- [\w-]{16,}
glc_ [\w+/=]{20,}
glsa_ \w{20,}
gsk_ \w{32,}
hf_ [A-Za-z]{30,}
hooks\. slack\.com/services/[\w/]{20,}
hv[brs]\. [\w-]{20,}
key- [0-9a-f]{32}
lin_ (?:api|oauth)_\w{20,}
nfp_ \w{30,}
npm_ [A-Za-z0-9]{30,}
ntn_ [A-Za-z0-9]{30,}
pat- (?:na|eu|ap)\d-[0-9a-f-]{30,}
pdl_ (?:live|sdbx)_apikey_\w{10,}
pdl_ ntfset_\w{10,}
phx_ \w{30,}
pplx- \w{32,}
pscale_ (?:oauth|pw|tkn)_[\w.-]{20,}
pul- [0-9a-f]{30,}
pypi- [\w-]{30,}
r8_ \w{30,}
re_ [A-Za-z0-9]{6,10}_[A-Za-z0-9]{16,}
rlv_ [\w-]{16,}
rk_ (?:live|test)_\w{4,}
rubygems_ [0-9a-f]{30,}
sbp_ [0-9a-f]{30,}
secret_ [A-Za-z0-9]{40,}
shp(?:at|ca|pa|ss|tka)_ [0-9a-fA-F]{16,}
sk- (?:admin|ant|None|or|proj|svcacct)-[\w-]{16,}
sk- [A-Za-z0-9]{32,}
sk_ (?:live|test)_\w{4,}
sntry[su]_ [\w+/=-]{20,}
sq0(?:atp|csp)- [\w-]{20,}
tfp_ \w{30,}
tskey- [\w-]{20,}
whsec_ [\w+/=-]{4,}
xai- \w{32,}
xapp- \d-[\w-]{8,}
xox[abceoprs]- [\w-]{4,}
ya29\. [\w-]{16,}
"""
# Those without such a head, each with what a quick look searches for in its place, backwards. For
# those with nothing see may_hold_key().
_OTHERS = {
    r"dapi[0-9a-f]{32}": "",
    r"oauth:[a-z0-9]{30}": "",
    r"pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}": r".{14}tap",
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}": r".{6}\x01[\w\x01]{23,27}[MNO]",
    r"\d{8,10}:[\w-]{35}(?![\w-])": "",
    r"[0-9a-f]{32}-us\d{1,2}(?!\w)": r"[0a-f\x01]{32}",
}


def _by_head(patterns: list[str]) -> str:
    """The alternatives, those that begin with one letter behind that letter."""
    heads: dict[str, list[str]] = {}
    for pattern in patterns:
        heads.setdefault(pattern[0] if pattern[0].isalpha() else "", []).append(pattern)
    return "|".join(
        "|".join(tails) if not head else f"{head}(?:{'|'.join(tail[1:] for tail in tails)})"
        for head, tails in heads.items()
    )


def _spelled(head: str) -> Iterator[str]:
    """Every text that a head stands for."""
    parts = [
        either.split("|") if either else list(some) or [one]
        for either, some, one in re.findall(r"\(\?:([^)]*)\)|\[([^\]]*)\]|\\?(.)", head)
    ]
    return map("".join, product(*parts))


_LINES = _KEYS.split("\n")[1:-1]

KEY = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_by_head([line.replace(' ', '', 1) for line in _LINES] + [*_OTHERS])})",
    re.ASCII,
)
"""A key of one of the vendors."""

# A quick look at encoded JSON. To compare at each place of a text costs more than all else that is
# done with a small payload, so some letters are made one and the same: the search leaps from one to
# the next. A head ends in one of them, and is searched for backwards.

_RARE = b"ABCKQTV_-.=$bxz/\\"
FOLD = bytes.maketrans(b"0123456789" + _RARE, b"0000000000" + b"\x01" * len(_RARE))
"""Digits as zeros, and the letters on which a quick search stands still as the byte 1."""


def _backwards(head: str) -> str:
    return str(head.encode().translate(FOLD), "ascii")[-2::-1]


_heads = sorted({_backwards(text) for line in _LINES for text in _spelled(line.split(" ")[0])})

HEADS = re.compile(
    rf"\x01(?:(?:{_by_head(_heads)})(?![A-Za-z0-9])|{'|'.join(filter(None, _OTHERS.values()))})",
    re.ASCII | re.DOTALL,
)
"""Where a key may stand in text that was folded by FOLD, and is read backwards."""

_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")


def without_escapes(data: bytes) -> bytes:
    """Encoded JSON with a blank for each escape, whose letter belongs to no key."""
    return _ESCAPE.sub(b" ", data)


def may_hold_key(folded: str) -> bool:
    """Whether encoded JSON without escapes, folded by FOLD, may hold a vendor's key."""
    return (
        HEADS.search(folded[::-1]) is not None
        or "dapi" in folded
        or "oauth:" in folded
        or ("0000" in folded and "00000000:" in folded)
    )


def holds_key(data: bytes) -> bool:
    """Whether encoded JSON holds a vendor's key."""
    return KEY.search(str(without_escapes(data), "latin-1")) is not None
