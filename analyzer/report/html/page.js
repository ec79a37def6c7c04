// Draws the curves and heat maps of the page from its JSON; all text of a log goes through textContent or a canvas.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = [], maps = [];
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  // Style sheets resolve a variable per theme; a canvas needs the colour that came out.
  const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const ROLE = { root: "bad", consequence: "warn", benign: "calm" };
  const number = (v) => {
    if (v === null || v === undefined) return "";
    const size = Math.abs(v);
    return size !== 0 && (size >= 1e6 || size < 1e-3) ? (+v.toPrecision(4)).toExponential().replace("e+", "e") : String(+v.toPrecision(5));
  };
  const font = (px) => `${px * devicePixelRatio}px system-ui, sans-serif`;
  const clampTo = (v, low, high) => Math.max(low, Math.min(high, v));

  // Evidence on this curve as stretches, that of an event as the moment it happened.
  const marks = (plot) => [...plot.bands, ...plot.events.map(([from, , ...rest]) => [from, from, ...rest])].filter((mark) => mark[0] !== null);

  // Bands of evidence behind the curves, where it was not finite above them, and their labels.
  const behind = (plot) => (u) => {
    const done = new Set(), { ctx } = u, { left, top, width, height } = u.bbox;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    for (const [from, end, , role] of marks(plot)) {
      const a = u.valToPos(from, "x", true), b = u.valToPos(end, "x", true);
      if (done.has(`${from} ${end}`)) continue;
      done.add(`${from} ${end}`);
      ctx.fillStyle = colour(`${ROLE[role]}-fill`);
      ctx.fillRect(a - 1, top, Math.max(3, b - a + 2), height);
      ctx.strokeStyle = colour(ROLE[role]); ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([3, 3]);
      for (const at of b - a > 4 ? [a, b] : [a]) { ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, top + height); ctx.stroke(); }
    }
    ctx.restore();
  };
  const above = (plot) => (u) => {
    const { ctx } = u, { left, top, width } = u.bbox, right = left + width, dpr = devicePixelRatio;
    ctx.save();
    ctx.font = `bold ${font(11)}`; ctx.textBaseline = "top"; ctx.textAlign = "left"; ctx.setLineDash([]);
    const taken = [];
    for (const [from, to, label, role] of marks(plot)) {
      const at = u.valToPos(from, "x", true), end = u.valToPos(to, "x", true);
      if (end < left || at > right) continue;
      const wide = ctx.measureText(label).width, x = clampTo(at + 3 * dpr, left + 2, right - wide - 2);
      let line = 0;
      while (taken.some(([a, b, l]) => l === line && x < b && x + wide > a)) line++;
      taken.push([x - 4, x + wide + 4, line]);
      const y = top + (10 + 15 * line) * dpr;
      ctx.fillStyle = colour("bg"); ctx.fillRect(x - 2, y - dpr, wide + 4, 13 * dpr);
      ctx.fillStyle = colour(ROLE[role]); ctx.fillText(label, x, y);
    }
    ctx.fillStyle = ctx.strokeStyle = colour("bad");
    let said = false;
    for (const line of plot.lines) for (const [from, to] of line.b) {
      const a = clampTo(u.valToPos(from, "x", true), left, right), b = clampTo(u.valToPos(to, "x", true), left, right);
      if (u.valToPos(to, "x", true) < left || u.valToPos(from, "x", true) > right) continue;
      ctx.fillRect(a - 2 * dpr, top + dpr, b - a + 4 * dpr, 5 * dpr);
      if (!said) {
        const text = "not finite", wide = ctx.measureText(text).width;
        ctx.fillText(text, clampTo(a - wide - 6 * dpr < left ? b + 5 * dpr : a - wide - 6 * dpr, left + 2, right - wide), top);
        said = true;
      }
    }
    ctx.restore();
  };

  const joined = (plot) => {
    const tables = plot.lines.map((line) => [line.x, line.y]);
    return tables.length > 1 ? uPlot.join(tables) : tables[0];
  };
  // The whole run, or some steps on either side of the failure.
  const span = (plot, near) => {
    const [low, high] = plot.span;
    if (!near || plot.first === null) return low === high ? [low - 1, high + 1] : [low, high];
    const ends = plot.bands.filter((band) => band[0] !== null && band[3] === "root").map((band) => band[1]);
    const reach = clampTo(Math.max(20, ...ends.map((end) => 1.5 * (end - plot.first))), 20, Math.max(20, (high - low) / 8));
    return [Math.max(low, plot.first - reach), Math.min(Math.max(high, low + 1), plot.first + reach)];
  };

  function draw(box, plot) {
    const values = joined(plot), x = values[0], figure = box.closest("figure"), readout = figure.querySelector(".readout");
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 0.5 }, ticks: { stroke: colour("line"), width: 0.5 }, font: "12px system-ui, sans-serif" };
    const shown = (u, ticks) => ticks.map((v) => (v === null ? "" : number(v)));
    const say = (u) => {
      const at = u.cursor.idx;
      if (at === null || at === undefined) { readout.textContent = ""; return; }
      const parts = plot.lines.map((line, n) => [line, values[n + 1][at]]).filter(([, v]) => v !== undefined);
      const texts = parts.map(([line, v]) => `${line.n}${plot.several ? ` (segment ${line.s})` : ""} ${v === null ? "not finite" : number(v)}`);
      readout.textContent = `${plot.unit} ${x[at]}: ${texts.join(", ")}`;
      box.setAttribute("aria-valuenow", x[at]);
      box.setAttribute("aria-valuetext", readout.textContent);
    };
    const scaleY = plot.kind === 3 ? { distr: 3 } : plot.kind === 4 ? { distr: 4, asinh: plot.bend } : {};
    const empty = !plot.lines.some((line) => line.y.some((v) => v !== null));
    const chart = new uPlot({
      width: box.clientWidth, height: box.clientHeight, legend: { show: false }, pxAlign: false,
      cursor: { sync: { key: `run${plot.run}`, setSeries: false }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: (u, low, high) => [low, high] }, y: empty ? { range: [0, 1] } : scaleY },
      axes: [{ ...axis, values: shown, size: 34, incrs: [1, 2, 5].flatMap((m) => [...Array(15).keys()].map((p) => m * 10 ** p)).sort((a, b) => a - b) },
             { ...axis, values: shown, size: 64 }],
      series: [{}, ...plot.lines.map((line) => ({ label: line.n, stroke: colour(`c${line.c}`), width: line.c % 2 ? 1.25 : 1.75, dash: line.c % 2 ? [5, 4] : [], points: x.length < 60 ? { size: 4 } : {} }))],
      hooks: { drawClear: [behind(plot)], draw: [above(plot)], setCursor: [say] },
    }, values, box);
    const go = (near) => { const [min, max] = span(plot, near); chart.setScale("x", { min, max }); };
    go(false);
    box.setAttribute("aria-valuemin", x[0]);
    box.setAttribute("aria-valuemax", x[x.length - 1]);
    return { chart, go, x, box, plot };
  }

  const move = (length, at, key) => ({ ArrowLeft: at - 1, ArrowRight: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: length - 1 })[key];
  const slider = (box, text) => {
    box.tabIndex = 0;
    box.setAttribute("role", "slider");
    box.setAttribute("aria-label", text);
    for (const name of ["aria-valuemin", "aria-valuemax", "aria-valuenow"]) box.hasAttribute(name) || box.setAttribute(name, "0");
    box.hasAttribute("aria-valuetext") || box.setAttribute("aria-valuetext", "use the arrow keys to read values");
  };

  for (const box of document.querySelectorAll(".chart")) {
    const one = draw(box, data.plots[box.closest("figure").id]);
    charts.push(one);
    slider(box, `${box.dataset.name}: curve over ${one.plot.unit}s`);
    box.addEventListener("keydown", (event) => {
      const { chart, x } = one, at = move(x.length, chart.cursor.idx ?? 0, event.key);
      if (at === undefined) return;
      event.preventDefault();
      const to = clampTo(at, 0, x.length - 1);
      chart.setCursor({ left: chart.valToPos(x[to], "x"), top: chart.over.clientHeight / 2 }, true, true);
    });
  }

  // -- heat maps --
  const STOPS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
  const shade = (t) => {
    const at = clampTo(t, 0, 1) * (STOPS.length - 1), n = Math.min(STOPS.length - 2, Math.floor(at));
    return STOPS[n].map((v, i) => Math.round(v + (STOPS[n + 1][i] - v) * (at - n)));
  };
  const BAD = [255, 45, 120], LEVELS = 250;
  const valueOf = (map, level) => {
    const t = (level - 1) / (LEVELS - 1);
    const mix = (f, back) => back(f(map.low) + t * (f(map.high) - f(map.low)));
    if (map.kind === 3) return mix(Math.log, Math.exp);
    if (map.kind === 4) return mix((v) => Math.asinh(v / map.bend), (v) => Math.sinh(v) * map.bend);
    return mix((v) => v, (v) => v);
  };

  function paint(one) {
    const { box, map, canvas, cells, state } = one, dpr = devicePixelRatio;
    const width = box.clientWidth, R = map.names.length, C = map.spans.length;
    const ctx = canvas.getContext("2d");
    ctx.font = "12px system-ui, sans-serif";
    const left = Math.min(110, 12 + Math.max(...map.names.map((name) => ctx.measureText(name).width))), top = 18, foot = 50;
    const cell = clampTo(260 / R, 3, 26), high = Math.max(60, R * cell), wide = width - left - 8;
    Object.assign(one, { left, top, wide, high });
    canvas.width = width * dpr; canvas.height = (top + high + foot) * dpr;
    canvas.style.width = `${width}px`; canvas.style.height = `${top + high + foot}px`;
    ctx.scale(dpr, dpr);
    ctx.font = "12px system-ui, sans-serif";
    const image = new ImageData(C, R);
    cells.forEach((level, at) => {
      const [r, g, b] = level === 255 ? BAD : shade((level - 1) / (LEVELS - 1));
      image.data.set([r, g, b, level ? 255 : 0], 4 * at);
    });
    const small = new OffscreenCanvas(C, R);
    small.getContext("2d").putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(small, left, top, wide, high);
    // Hatching says "not finite" without colour.
    ctx.save(); ctx.beginPath();
    cells.forEach((level, at) => level === 255 && ctx.rect(left + (at % C) * wide / C, top + Math.floor(at / C) * high / R, wide / C, high / R));
    ctx.clip(); ctx.strokeStyle = "#000"; ctx.lineWidth = 1; ctx.beginPath();
    if (cells.includes(255)) for (let d = -high; d < wide; d += 7) { ctx.moveTo(left + d, top + high); ctx.lineTo(left + d + high, top); }
    ctx.stroke(); ctx.restore();
    const ink = colour("soft");
    ctx.strokeStyle = colour("line"); ctx.strokeRect(left, top, wide, high);
    ctx.fillStyle = ink; ctx.textBaseline = "middle"; ctx.textAlign = "right";
    const every = Math.ceil(13 / (high / R));
    map.names.forEach((name, r) => r % every || ctx.fillText(name, left - 5, top + (r + 0.5) * high / R, left - 8));
    ctx.textBaseline = "top"; ctx.textAlign = "center";
    for (let n = 0, most = Math.max(1, Math.floor(wide / 80)); n <= most; n++) {
      const c = Math.min(C - 1, Math.round(n * (C - 1) / most)), [segment, from] = map.spans[c];
      ctx.fillText(number(from) + (segment ? ` (s${segment})` : ""), clampTo(left + (c + 0.5) * wide / C, left + 12, left + wide - 12), top + high + 4);
    }
    const column = (step, segment) => map.spans.findIndex(([s, , to]) => s === segment && to >= step);
    let said = 0; // where the label before ends
    for (const [from, to, label, role, segment] of map.bands) {
      const a = from === null ? -1 : column(from, segment), b = column(to, segment) < 0 ? C - 1 : column(to, segment);
      if (a < 0) continue;
      ctx.fillStyle = colour(ROLE[role]);
      ctx.fillRect(left + a * wide / C, top - 4, (b - a + 1) * wide / C, 3);
      ctx.textBaseline = "bottom"; ctx.textAlign = "left";
      const x = Math.max(said, clampTo(left + a * wide / C, left, left + wide - 20));
      if (x < left + wide - 15) ctx.fillText(label, x, top - 4);
      said = x + ctx.measureText(label).width + 5;
    }
    // The scale.
    const y = top + high + 26, bar = Math.min(160, wide * 0.5);
    for (let n = 0; n < bar; n++) { ctx.fillStyle = `rgb(${shade(n / bar)})`; ctx.fillRect(left + n, y, 1.5, 9); }
    ctx.fillStyle = ink; ctx.textBaseline = "top"; ctx.textAlign = "left";
    ctx.fillText(number(map.low), left, y + 13);
    ctx.textAlign = "right"; ctx.fillText(number(map.high), left + bar, y + 13);
    if (cells.includes(255)) {
      ctx.fillStyle = `rgb(${BAD})`; ctx.fillRect(left + bar + 14, y, 14, 9);
      ctx.fillStyle = ink; ctx.textAlign = "left"; ctx.fillText("not finite", left + bar + 33, y - 2);
    }
    if (state) {
      ctx.strokeStyle = colour("ink"); ctx.lineWidth = 2;
      ctx.strokeRect(left + state[0] * wide / C, top + state[1] * high / R, Math.max(4, wide / C), Math.max(4, high / R));
    }
  }

  const tell = (one) => {
    const { map, cells, state, readout, box } = one;
    const [c, r] = state, level = cells[r * map.spans.length + c], [segment, from, to] = map.spans[c];
    const what = level === 0 ? "nothing logged" : level === 255 ? "not finite" : `about ${number(valueOf(map, level))}`;
    const steps = from === to ? `${map.unit} ${from}` : `${map.unit}s ${from} to ${to}`;
    readout.textContent = `${map.axis} ${map.names[r]}, ${steps}${segment ? ` of segment ${segment}` : ""}: ${what}`;
    box.setAttribute("aria-valuenow", from);
    box.setAttribute("aria-valuetext", readout.textContent);
  };

  for (const box of document.querySelectorAll(".heat")) {
    const map = data.maps[box.closest("figure").id], canvas = box.appendChild(document.createElement("canvas"));
    const cells = Uint8Array.from(atob(map.cells), (c) => c.charCodeAt(0));
    const one = { box, map, canvas, cells, state: null, readout: box.closest("figure").querySelector(".readout") };
    maps.push(one);
    slider(box, `${box.dataset.name}: heat map`);
    box.setAttribute("aria-valuemin", map.spans[0][1]);
    box.setAttribute("aria-valuemax", map.spans[map.spans.length - 1][2]);
    const point = (to) => { one.state = to; tell(one); paint(one); };
    canvas.addEventListener("pointermove", (event) => {
      const c = Math.floor((event.offsetX - one.left) / one.wide * map.spans.length), r = Math.floor((event.offsetY - one.top) / one.high * map.names.length);
      if (c >= 0 && r >= 0 && c < map.spans.length && r < map.names.length && (!one.state || c !== one.state[0] || r !== one.state[1])) point([c, r]);
    });
    box.addEventListener("keydown", (event) => {
      const [c, r] = one.state || [0, 0], down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const at = down ? c : move(map.spans.length, c, event.key);
      if (at === undefined) return;
      event.preventDefault();
      point([clampTo(at, 0, map.spans.length - 1), clampTo(r + (down || 0), 0, map.names.length - 1)]);
    });
    paint(one);
  }

  // -- the rest of the page --
  for (const tools of document.querySelectorAll(".tools")) {
    tools.hidden = false;
    const inside = (one) => tools.parentElement.contains(one.box);
    const apply = (near) => {
      tools.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String((b.dataset.zoom === "bad") === near)));
      charts.filter(inside).forEach((one) => one.go(near));
    };
    tools.addEventListener("click", (event) => event.target.dataset.zoom && apply(event.target.dataset.zoom === "bad"));
  }
  const status = document.getElementById("status");
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try { await navigator.clipboard.writeText(code.innerText); } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = status.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; status.textContent = ""; }, 2000);
    });
  }
  const redraw = () => {
    for (const one of charts) {
      const { min, max } = one.chart.scales.x;
      one.chart.destroy();
      Object.assign(one, draw(one.box, one.plot));
      one.chart.setScale("x", { min, max });
    }
    maps.forEach(paint);
  };
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)"), theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); redraw(); });
  dark.addEventListener("change", () => { label(); redraw(); });
  let held;
  addEventListener("beforeprint", () => { held = root.dataset.theme; root.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => { if (held) root.dataset.theme = held; else delete root.dataset.theme; redraw(); });
  let wide = innerWidth;
  new ResizeObserver(() => {
    if (innerWidth === wide) return;
    wide = innerWidth;
    charts.forEach((one) => one.chart.setSize({ width: one.box.clientWidth, height: one.box.clientHeight }));
    maps.forEach(paint);
  }).observe(document.body);
  root.dataset.ready = "1";
})();
