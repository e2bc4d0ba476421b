"""Style sheet of the page: no font, image or script comes from elsewhere."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1d2330; --soft: #5b6472;
  --line: #d8dce3; --panel: #f4f6f9; --accent: #0b63a5; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171c; --ink: #e8eaee; --soft: #a5adba; --line: #373d47;
    --panel: #1d2128; --accent: #7cc0f5; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: clamp(1.45rem, 1.15rem + 1vw, 1.75rem); line-height: 1.25; margin: .2rem 0 .8rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p, li, dd { max-width: 72ch; }
.about { color: var(--soft); margin: 0; }
.verdict { background: var(--panel); border-left: .35rem solid var(--accent);
  padding: 1rem 1.1rem; border-radius: .3rem; overflow-wrap: anywhere; }
.verdict ul { margin: 0; padding-left: 1.2rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .3rem; }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead > tr > * { background: var(--panel); }
tbody th { text-align: left; font-weight: 600; position: sticky; left: 0;
  background: var(--ground); }
tr.part th { font-weight: 400; color: var(--soft); padding-left: 1.5rem; }
.meaning { text-align: left; white-space: normal; min-width: 21rem; color: var(--soft); }
.plain td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.plain th { white-space: normal; }
dl { margin: .4rem 0 1rem; display: grid; grid-template-columns: max-content 1fr;
  gap: .15rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
a { color: var(--accent); }
.columns { columns: 27rem 2; column-gap: 1.2rem; }
figure { margin: 0 0 1.2rem; break-inside: avoid; border: 1px solid var(--line);
  border-radius: .3rem; overflow: hidden; background: var(--panel); }
figure .card { background: #ffffff; padding: .6rem; }
figure img { display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto; }
figcaption { padding: .7rem .9rem; font-size: .92rem; }
.warnings li { margin-bottom: .3rem; overflow-wrap: anywhere; }
@media (max-width: 30rem) {
  th, td { padding: .32rem .45rem; }
  figure .card { padding: .2rem; }
  tbody th { max-width: 9.5rem; white-space: normal; }
  .meaning { min-width: 17rem; }
  dl { display: block; } dd { margin: 0 0 .4rem 1rem; }
}
@media print {
  :root { --ground: #ffffff; --ink: #000000; --soft: #333333; --line: #999999;
    --panel: #f4f4f4; --accent: #000000; }
  main { max-width: none; padding: 0; }
  .scroll, .tall { overflow: visible; max-height: none; }
  .columns { columns: 1; }
  figure img { max-width: 13cm; }
  table { font-size: .7rem; }
  th, td { padding: .15rem .3rem; }
  .meaning { min-width: 0; }
}
""".strip()
"""The rules, for any width from a telephone to paper."""
