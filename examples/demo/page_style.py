"""The style sheet of the report. Owns colours, for light and dark, and nothing else."""

from __future__ import annotations

_LIGHT = {
    "ground": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#16202c",
    "soft": "#5b6876",
    "line": "#dfe4ea",
    "blue": "#2166c4",
    "orange": "#d9730d",
    "green": "#138a5b",
    "violet": "#7a4fd0",
    "mid": "#c02450",
    "good-back": "#e2f5ea",
    "good": "#0b6b3f",
    "bad-back": "#fde6e6",
    "bad": "#a3141c",
    "heat-1": "#e3eefb",
    "heat-2": "#c5dcf5",
    "heat-3": "#9fc4ed",
    "heat-4": "#74a7e1",
    "heat-5": "#4a88d1",
    "heat-6": "#2a69b8",
    "heat-7": "#124a93",
}
_DARK = {
    "ground": "#0f141a",
    "card": "#171e27",
    "ink": "#e7edf4",
    "soft": "#9aa7b5",
    "line": "#2b3643",
    "blue": "#5b9bf0",
    "orange": "#f0a04b",
    "green": "#45c28d",
    "violet": "#a98af0",
    "mid": "#ff7d9c",
    "good-back": "#12351f",
    "good": "#6fdc9c",
    "bad-back": "#43181b",
    "bad": "#ff9a9a",
    "heat-1": "#1b2b40",
    "heat-2": "#1f3b5e",
    "heat-3": "#24507f",
    "heat-4": "#2c69a6",
    "heat-5": "#4087cb",
    "heat-6": "#6aa9e6",
    "heat-7": "#a9d2fb",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_COLOURED = "".join(
    f".stroke-{name}{{stroke:var(--{name})}}.fill-{name}{{fill:var(--{name})}}.back-{name}{{background:var(--{name})}}"
    for name in ("blue", "orange", "green", "violet", "mid")
)
_HEAT = "".join(
    f".heat-{shade}{{fill:var(--heat-{shade})}}.back-heat-{shade}{{background:var(--heat-{shade})}}"
    for shade in range(1, 8)
)

STYLE = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    + _COLOURED
    + _HEAT
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:26px;margin:0}
h2{font-size:17px;margin:0 0 2px}
h3{font-size:14px;font-weight:600;margin:14px 0 2px}
p{margin:0 0 8px;color:var(--soft)}
.lead{margin:2px 0 14px}
.verdict{display:inline-block;font-weight:600;font-size:17px;padding:8px 16px;border-radius:8px}
.verdict{margin:0 0 14px}
.verdict.good{background:var(--good-back);color:var(--good)}
.verdict.bad,ul.bad{background:var(--bad-back);color:var(--bad)}
ul.bad{border-radius:8px;padding:8px 16px 8px 32px;margin:0 0 14px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(138px,1fr));gap:12px;margin-bottom:16px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:10px 14px}
.tile b{display:block;font-size:21px;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
.card{padding:16px 18px;margin-bottom:16px;min-width:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));column-gap:16px}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}
svg .tick,svg .label{fill:var(--soft);font-size:11px}
svg .grid{stroke:var(--line);fill:none}
svg .axis{stroke:var(--soft);fill:none}
svg .line{fill:none;stroke-width:1.6;stroke-linejoin:round}
svg .mark{stroke:var(--soft);stroke-dasharray:4 3;fill:none}
svg .mark-text{font-size:11px;paint-order:stroke;stroke:var(--card);stroke-width:3px}
svg .box{fill:var(--ground);stroke:var(--line)}
svg .box-title{font-weight:600;font-size:13px}
svg .box-text{fill:var(--soft);font-size:11px}
svg .arrow{stroke:var(--soft);fill:none;stroke-width:1.4}
svg .tip{fill:var(--soft)}
svg .count{font-size:11px;paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg .bolt{fill:var(--orange)}
.legend{font-size:12px;margin:2px 0 0}
.key{margin-right:16px;white-space:nowrap}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.shade{display:inline-block;width:16px;height:11px;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:1px solid var(--soft)}
th,td{padding:5px 10px 5px 0;vertical-align:top}
td{border-bottom:1px solid var(--line)}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.n+td:not(.n),.n+th:not(.n){padding-left:14px}
tfoot td{font-weight:600;border-bottom:0;border-top:1px solid var(--soft)}
tr.bad td{background:var(--bad-back);color:var(--bad)}
ul{margin:6px 0 0;padding-left:20px}
li{margin-bottom:4px}
:focus-visible{outline:2px solid var(--blue);outline-offset:2px}
@media(max-width:600px){
main{padding:16px 10px 32px}
.card{padding:14px 12px}
[role=region]>svg{width:760px}
svg .tick,svg .label,svg .mark-text{font-size:14px}
table,thead,tbody,tfoot,tr,td{display:block}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
tr{padding:8px 0;border-bottom:1px solid var(--line)}
td,.n+td:not(.n){display:flex;justify-content:space-between;gap:16px;padding:1px 0;border:0;
text-align:right;white-space:normal}
td::before{content:attr(data-name);color:var(--soft);text-align:left;flex:none}
tr.bad td::before{color:inherit}
td:empty{display:none}
tfoot td{border-top:0}
}
"""
)
