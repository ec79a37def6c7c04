"""The HTML report measured: a trace of 1e7 values, and pages looked at by a browser and by axe-core.

    python benchmarks/page.py                          generate, render, open, print a table
    python benchmarks/page.py --shots shots --axe node_modules/axe-core/axe.min.js

The large trace has 1e6 values of the whole model, 4e6 by layer (48 layers), and 5e6 by expert (64 experts); at 60 % of
the run the gradient norm turns NaN, among the layers that of 17 alone, and one value of the loss is 1e9. The other pages are runs of fixtures/corpus
written as logs with everything in them (level 4), two texts, and a page of several runs.

Opening needs Chromium (apt-get install chromium) and `pip install playwright`, the rules of accessibility need
axe-core (npm pack axe-core); what is missing is said and its columns stay empty. A page opens when its script is done; the time
starts before the browser is told its address. Requests are those of DevTools but the page's own.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from faultproxy.analyzer.canonical import ValuesWriter
from faultproxy.analyzer.diagnose import diagnose
from faultproxy.analyzer.ingest import read
from faultproxy.analyzer.report.document import document
from faultproxy.analyzer.report.html import page
from faultproxy.analyzer.schema import ROW_GROUP
from faultproxy.proxy.lab import export, store

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
WHOLE = (
    "entropy",
    "grad_norm",
    "kl_ref",
    "loss",
    "loss_scale",
    "lr",
    "response_length",
    "reward",
    "step_time",
    "throughput",
)
RUNS = {
    "dead experts": "markov-mixtral-pretrain/dead_experts.2@12/s1",
    "overflow in a layer": "maximum-deepseekv3-grpo/fp16_activation_overflow.2@12/s2",
    "routers apart": "interleave-qwen3moe-grpo/gates_unnormalised.2@16/s1",
    "healthy": "sort-qwen3moe-grpo/healthy/s0",
}
TEXTS = {
    "inconclusive": "step:1 - perf/throughput:3.0 - perf/time_per_step:2.0\n",
    "restart": "".join(
        f" [2026-01-01 00:00:{n % 60:02}] iteration {s:8d}/ 400 | lm loss: {9 / s + 1:.4f} | grad norm: {1 + s % 5 / 10:.3f} |\n"
        for n, s in enumerate([*range(1, 120), *range(100, 200)])
    ),
}


def generate(folder: Path, values: int) -> Path:
    """Write `values.parquet`: whole model, layers, and experts of one run."""
    import pyarrow as pa

    writer = ValuesWriter(folder / "values.parquet")
    parts = [(name, "NULL::INTEGER", "NULL::INTEGER", 1, values // 100) for name in WHOLE]
    parts += [(name, "i::INTEGER", "NULL::INTEGER", 48, values // 240) for name in ("act_absmax", "grad_norm")]
    parts += [("expert_load", "17", "i::INTEGER", 64, values // 128)]
    with duckdb.connect() as con:
        for signal, layer, expert, width, steps in sorted(parts, key=lambda part: (part[0], part[3])):
            onset = values // 100 * 6 // 10
            stride = max(1, values // 100 // steps)
            bad = f"step >= {onset} AND i = {17 if width > 1 else 0}" if signal == "grad_norm" else "false"
            spike = f"step = {onset // stride * stride}" if signal == "loss" else "false"
            relation = con.sql(f"""
                SELECT 'bench' AS run, 0::SMALLINT AS segment, 'train' AS axis, step, NULL::INTEGER AS rank, {layer}::SMALLINT AS layer,
                    {expert}::SMALLINT AS expert, NULL AS module, NULL AS role, '{signal}' AS signal, NULL AS stat, NULL AS label,
                    CASE WHEN {bad} THEN NULL WHEN {spike} THEN 1e9 ELSE (1 + hash(i * 1000003 + step) / 2e19)::FLOAT::DOUBLE END AS value,
                    CASE WHEN {bad} THEN 'nan' ELSE 'finite' END AS state, NULL AS raw, 0::INTEGER AS source, step AS line
                FROM (SELECT r.range AS i FROM range({width}) r), (SELECT s.range * {stride} AS step FROM range({steps}) s) ORDER BY i, step""")
            for batch in relation.to_arrow_reader(ROW_GROUP):
                writer.write(pa.Table.from_batches([batch]))
    writer.close({})
    return folder


def pages(folder: Path, values: int) -> Iterator[tuple[str, str, float]]:
    """Each page by name, with the CPU seconds it took to render (reading and diagnosing apart)."""
    big = folder / "big.trace"
    big.mkdir()
    inputs = {f"{values:.0e} values": generate(big, values)}
    for name, run in RUNS.items():
        trace = next(
            trace for row, trace in store.load(ROOT / "fixtures" / "corpus", run.split("/")[0]) if row["run"] == run
        )
        format_ = export.formats_for(trace)[0]
        path = folder / f"{name.replace(' ', '-')}-{export.FORMATS[format_].file}"
        path.write_text(export.export(trace, format_, 4), encoding="utf-8")
        inputs[name] = path
    for name, text in TEXTS.items():
        inputs[name] = folder / f"{name}.log"
        inputs[name].write_text(text)
    groups = {name: [path] for name, path in inputs.items()} | {"several runs": [*inputs.values()][1:]}
    for name, paths in groups.items():
        traces = [trace for path in paths for trace in read([str(path)])]
        reports = [document(diagnose(trace)) for trace in traces]
        start = time.process_time()
        text = page.render(reports, traces)
        yield name, text, time.process_time() - start


def missing(axe: Path) -> list[str]:
    """What the browser checks lack, with how to get it."""
    lacks = [] if Path(CHROMIUM).exists() else [f"{CHROMIUM}: apt-get install chromium"]
    lacks += [] if importlib.util.find_spec("playwright") else ["playwright: pip install playwright"]
    return lacks + ([] if axe.is_file() else [f"{axe}: npm pack axe-core, unpack it, and pass --axe PATH"])


class Browser:
    """Headless Chromium on files of this machine."""

    def __init__(self, axe: Path, shots: Path | None) -> None:
        from playwright.sync_api import sync_playwright

        self.axe = axe.read_text(encoding="utf-8") if axe.is_file() else None
        self.shots = shots
        self.driver = sync_playwright().start()
        self.chromium = self.driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

    def opened(self, path: Path, name: str) -> dict[str, Any]:
        """Seconds to open, requests, and errors of a page; what its keys do; serious findings of axe-core by theme."""
        found: dict[str, Any] = {}
        tab = self.chromium.new_page(viewport={"width": 1280, "height": 900})
        requests: list[str] = []
        errors: list[str] = []
        wire = tab.context.new_cdp_session(tab)
        wire.send("Network.enable")
        wire.on("Network.requestWillBeSent", lambda event: requests.append(event["request"]["url"]))
        tab.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        start = time.perf_counter()
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        found["open_s"] = time.perf_counter() - start
        charts = tab.locator(".chart")
        if charts.count():
            charts.first.focus()
            tab.keyboard.press("ArrowRight")
            found["keys"] = tab.locator(".readout").first.inner_text() != ""
        tab.set_viewport_size({"width": 390, "height": 800})
        tab.wait_for_timeout(300)  # the page draws anew
        found["fits 390 px"] = tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found["requests"] = len([url for url in requests if url != path.as_uri() and not url.startswith("data:")])
        found["errors"] = errors
        tab.close()
        for scheme in ("light", "dark"):
            found[f"axe {scheme}"] = self.look(path, name, scheme)
        return found

    def look(self, path: Path, name: str, scheme: Any) -> list[str] | None:
        """Serious and critical findings of axe-core (its script needs the page's policy lifted), and screenshots."""
        context = self.chromium.new_context(
            bypass_csp=True, color_scheme=scheme, viewport={"width": 1280, "height": 900}
        )
        tab = context.new_page()
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        if self.shots:
            for width in (1280, 390):
                tab.set_viewport_size({"width": width, "height": 900})
                tab.screenshot(path=self.shots / f"{name.replace(' ', '-')}-{scheme}-{width}.png", full_page=True)
        worst = None
        if self.axe is not None:
            tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
            tab.evaluate(self.axe)
            result = tab.evaluate("axe.run(document)")
            worst = [f"{one['id']} ({len(one['nodes'])}: {one['nodes'][0]['target']})" for one in result["violations"] if one["impact"] in ("serious", "critical")]  # fmt: skip
        context.close()
        return worst

    def close(self) -> None:
        """End the browser."""
        self.chromium.close()
        self.driver.stop()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=float, default=1e7)
    parser.add_argument("--axe", type=Path, default=Path("node_modules/axe-core/axe.min.js"))
    parser.add_argument(
        "--shots", type=Path, help="Folder for screenshots: each page, light and dark, 1280 and 390 px wide."
    )
    args = parser.parse_args()
    lacks = missing(args.axe)
    for line in lacks:
        print(f"not measured for lack of {line}")
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    browser = (
        Browser(args.axe, args.shots) if not any(line.startswith((CHROMIUM, "playwright")) for line in lacks) else None
    )
    print(f"{'page':22}{'CPU':>9}{'size':>10}{'open':>9}{'requests':>10}{'errors':>8}{'keys':>6}{'390 px':>8}  axe-core, serious or critical (light, dark)")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="faultproxy-page-") as base:
        for name, text, took in pages(Path(base), int(args.values)):
            path = Path(base) / "page.html"
            path.write_text(text, encoding="utf-8")
            line = f"{name:22}{took:7.2f} s{len(text.encode()) / 1000:7.0f} kB"
            if browser:
                seen = browser.opened(path, name)
                line += f"{seen['open_s']:7.2f} s{seen['requests']:10}{len(seen['errors']):8}{'' if 'keys' not in seen else 'yes' if seen['keys'] else 'NO':>6}{'yes' if seen['fits 390 px'] else 'NO':>8}  "  # fmt: skip
                line += "; ".join("not run" if seen[f"axe {s}"] is None else ", ".join(seen[f"axe {s}"]) or "none" for s in ("light", "dark"))  # fmt: skip
                line += "".join(f"\n  {error}" for error in seen["errors"])
            print(line, flush=True)
    if browser:
        browser.close()
    print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
