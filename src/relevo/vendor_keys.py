"""Keys that are known by the prefix their vendor gives them."""

from __future__ import annotations

import re

# By their first letter, so that a search rules out nearly every place with one comparison.
_KEYS = r"""
A(?:KIA|SIA)[A-Z0-9]{12,}
AIza[\w-]{10,}
AGE-SECRET-KEY-1\w{10,}
ATATT3[\w=-]{20,}
ATCTT3[\w=-]{20,}
APP_USR-\d{6,}-\d{6}-[0-9a-f]{16,}[\w-]*
AstraCS:\w+:[0-9a-f]{16,}
A21AA[\w-]{40,}
AQE[a-z][A-Za-z0-9+/_-]{40,}
AccountKey=[A-Za-z0-9+/]{40,}=*
CFPAT-[\w-]{20,}
EAA[A-Za-z][\w-]{30,}
FlyV1[ ][\w,+/=-]{20,}
GOCSPX-[\w-]{16,}
HRKU-[\w-]{20,}
NRAK-[A-Z0-9]{20,}
PMAK-[\w-]{30,}
SG\.[\w-]{16,}\.[\w-]{16,}
SharedAccessKey=[A-Za-z0-9+/]{30,}=*
TEST-\d{6,}-\d{6}-[0-9a-f]{16,}[\w-]*
access-(?:sandbox|production|development)-[0-9a-f-]{30,}
access_token\$(?:production|sandbox)\$[\w$]{16,}
dapi[0-9a-f]{32}
dckr_pat_[\w-]{16,}
discord(?:app)?\.com/api/webhooks/\d+/[\w-]{30,}
do[oprt]_v1_[0-9a-f]{32,}
dp\.(?:pt|st|sa|ct|scim|audit|said)\.[\w.-]{16,}
figd_[\w-]{20,}
gh[oprsu]_\w{8,}
github_pat_\w{8,}
gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[\w-]{16,}
glc_[\w+/=]{20,}
glsa_\w{20,}
gsk_\w{32,}
hf_[A-Za-z]{30,}
hooks\.slack\.com/services/[\w/]{20,}
hv[brs]\.[\w-]{20,}
key-[0-9a-f]{32}
lin_(?:api|oauth)_\w{20,}
nfp_\w{30,}
npm_[A-Za-z0-9]{30,}
ntn_[A-Za-z0-9]{30,}
oauth:[a-z0-9]{30}
pat-(?:na|eu|ap)\d-[0-9a-f-]{30,}
pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}
pdl_(?:live|sdbx)_apikey_\w{10,}
pdl_ntfset_\w{10,}
phx_\w{30,}
pplx-\w{32,}
pscale_(?:oauth|pw|tkn)_[\w.-]{20,}
pul-[0-9a-f]{30,}
pypi-[\w-]{30,}
r8_\w{30,}
re_[A-Za-z0-9]{6,10}_[A-Za-z0-9]{16,}
rk_(?:live|test)_\w{4,}
rubygems_[0-9a-f]{30,}
sbp_[0-9a-f]{30,}
secret_[A-Za-z0-9]{40,}
shp(?:at|ca|pa|ss|tka)_[0-9a-fA-F]{16,}
sk-(?:admin|ant|None|or|proj|svcacct)-[\w-]{16,}
sk-[A-Za-z0-9]{32,}
sk_(?:live|test)_\w{4,}
sntry[su]_[\w+/=-]{20,}
sq0(?:atp|csp)-[\w-]{20,}
tfp_\w{30,}
tskey-[\w-]{20,}
whsec_[\w+/=-]{4,}
xai-\w{32,}
xapp-\d-[\w-]{8,}
xox[abceoprs]-[\w-]{4,}
ya29\.[\w-]{16,}
[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}
\d{8,10}:[\w-]{35}(?![\w-])
[0-9a-f]{32}-us\d{1,2}(?!\w)
"""


def _by_head(patterns: list[str]) -> str:
    """The alternatives, those that begin with one letter behind that letter."""
    heads: dict[str, list[str]] = {}
    for pattern in patterns:
        heads.setdefault(pattern[0] if pattern[0].isalpha() else "", []).append(pattern)
    return "|".join(
        "|".join(tails) if not head else f"{head}(?:{'|'.join(tail[1:] for tail in tails)})"
        for head, tails in heads.items()
    )


KEY = re.compile(rf"(?<![A-Za-z0-9])(?:{_by_head(_KEYS.split(chr(10))[1:-1])})", re.ASCII)
"""A key of one of the vendors."""
