"use strict";
(() => {
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = parsed("servemark-data");
  const specs = parsed("drawings");
  // The rows of a table of the data block: names without any value are only in `empty`.
  const unpacked = ({ columns, rows, empty }) => {
    const none = Object.fromEntries(empty.map((name) => [name, null]));
    return rows.map((row) => ({ ...none, ...Object.fromEntries(row.map((value, at) => [columns[at], value])) }));
  };
  for (const panel of Object.values(data.curves)) {
    for (const [metric, table] of Object.entries(panel)) panel[metric] = unpacked(table);
  }
  const names = specs.series;
  const views = new Map();
  const hidden = new Set();
  const checked = (name) => document.querySelector(`input[name="${name}"]:checked`);
  const kind = (id) => (id === "throughput" ? "throughput" : "latency");

  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;

  // Text nodes only, so that a name cannot become HTML.
  const tooltip = (handler, event, item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const list = document.createElement("dl");
    for (const [key, text] of Object.entries(value)) {
      if (text === "" || text === "null") continue;
      list.appendChild(document.createElement("dt")).textContent = key;
      list.appendChild(document.createElement("dd")).textContent = text;
    }
    tip.replaceChildren(list);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 14;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 14 : below}px`;
  };

  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const palette = [1, 2, 3, 4, 5, 6, 7, 8].map((index) => style.getPropertyValue(`--series-${index}`).trim());
    return {
      background: null,
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      range: { category: palette },
      axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400, titlePadding: 8, labelPadding: 6, domain: false, ticks: false, labelLimit: 140 },
    };
  };

  const curves = ["throughput", "ttft", "tpot", "itl", "e2el"];
  const chosen = (id) => document.getElementById(id);
  // The index in an option's value, such as load-3 or point-7.
  const index = (id) => Number(chosen(id).value.split("-")[1]);

  const lengths = ["input_tokens", "output_tokens"];
  const range = (low, high) => (low === 0 ? `below ${high}` : `${low} to ${high}`);
  // Bins of lengths hold whole numbers of tokens.
  const tokens = (low, high) => (high - low === 1 ? `${low}` : `${low} to ${high - 1}`);
  const rangeOf = (metric) => (lengths.includes(metric) ? tokens : range);

  // The rows of a plot, with a share of 0 at both ends. A logarithmic axis needs a start above 0 for the first bin.
  const binRows = ({ edges, counts, logarithmic }, words) => Object.entries(counts).flatMap(([deployment, of]) => {
    const total = of.reduce((sum, count) => sum + count, 0);
    const at = (edge) => (logarithmic && edge === 0 ? edges[1] * 0.89 : edge);
    const bins = of.map((count, bin) => ({
      deployment, count, low: at(edges[bin]), high: edges[bin + 1], range: words(edges[bin], edges[bin + 1]),
      share: total ? (100 * count) / total : 0,
    }));
    const ground = (edge) => ({ deployment, low: edge, high: edge, count: 0, share: 0, range: "" });
    return [ground(at(edges[0])), ...bins, ground(edges[edges.length - 1])];
  });

  const binSpec = (metric) => {
    const bins = data.distributions[index("load")][metric];
    if (!bins) return null;
    const spec = structuredClone(specs.distribution[metric]);
    spec.data.values = binRows(bins, rangeOf(metric));
    const rows = spec.data.values;
    for (const { encoding: { x, y } } of spec.layer) {
      x.scale.domain = [rows[0].low, rows[rows.length - 1].high];
      y.scale.domain = [0, Math.max(...rows.map((row) => row.share))];
      if (!bins.logarithmic) continue;
      x.scale.type = "log";
      x.title += ", logarithmic";
    }
    return spec;
  };

  const lineSpec = (id, columns) => {
    const { columns: of } = data.timelines[index("point")];
    const kinds = Object.entries(columns).filter(([column]) => column in of);
    if (!kinds.length) return null;
    const spec = structuredClone(specs.timeline[id]);
    spec.data.values = kinds.flatMap(([column, kind]) => of.seconds.map((seconds, at) => ({ seconds, kind, value: of[column][at] })));
    spec.params[0].value = of.seconds.length <= 60;
    return spec;
  };

  const filled = (spec, values) => spec && { ...spec, data: { values } };

  const choice = (id) => checked("state").value + checked(kind(id)).value;
  // Whether any point has the chosen result: the steady state may have too few requests.
  const known = (id) => data.curves[chosen("panel").value][id].some((row) => row[choice(id)] !== null);

  // Each repetition carries the interval of its load point.
  const withBars = (rows, bars) => {
    const place = (row) => JSON.stringify([row.deployment, row.load]);
    const found = new Map(bars.map((bar) => [place(bar), bar]));
    return rows.map((row) => ({ ...row, bar: found.get(place(row)) }));
  };

  const curveSpec = (panel, id) => {
    if (!specs.panels[panel][id]) return undefined;
    const spec = filled(structuredClone(specs.panels[panel][id]), withBars(data.curves[panel][id], data.bars[panel][id]));
    // Without any point Vega has no axis, so a plot that is not shown gets the whole run.
    spec.params[0].value = known(id) ? choice(id) : checked(kind(id)).value;
    return spec;
  };

  // The data block contains numbers of phases. Their names are the domain of the colours.
  const startupSpec = () => {
    const phases = specs.startup?.layer[0].encoding.color.scale.domain;
    return filled(specs.startup, data.startup.map((row) => ({ ...row, phase: phases[row.number - 1] })));
  };

  // All plots by id, in groups that are redrawn together.
  const groups = {
    curves: chosen("panel") ? curves.map((id) => [id, () => curveSpec(chosen("panel").value, id)]) : [],
    bins: chosen("load") ? [...curves.slice(1), ...lengths].map((metric) => [`bins-${metric}`, () => binSpec(metric)]) : [],
    lines: chosen("point") ? [
      ["timeline-requests", () => lineSpec("requests", { running: "running", waiting: "waiting" })],
      ["timeline-kv", () => lineSpec("kv", { kv_percent: "KV cache in use" })],
      ["timeline-power", () => lineSpec("power", { power_w: "GPU power" })],
      ["timeline-clock", () => lineSpec("clock", { sm_clock_mhz: "SM clock" })],
      ["timeline-foreign", () => lineSpec("foreign", { foreign_cores: "other processes" })],
    ] : [],
    pareto: Object.entries(specs.pareto).map(([id, spec]) => [id, () => filled(structuredClone(spec), data.pareto[id])]),
    startup: [["startup", startupSpec]],
  };

  const draw = async (id, spec) => {
    const box = document.querySelector(`[data-drawing="${id}"]`);
    if (!box) return;
    views.get(id)?.finalize();
    views.delete(id);
    document.getElementById(`figure-${id}`).hidden = !spec;
    if (!spec) return;
    const result = await vegaEmbed(box, structuredClone(spec), {
      ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip, config: theme(),
      formatLocale: { decimal: ".", thousands: "\u202f", grouping: [3], currency: ["", ""] },
    });
    views.set(id, result.view);
  };

  const set = (id, view) => {
    if (curves.includes(id)) {
      const shown = known(id);
      document.querySelector(`[data-drawing="${id}"]`).hidden = !shown;
      document.querySelector(`[data-few="${id}"]`).hidden = shown;
      if (!shown) return view;
      view.signal("choice", choice(id));
    }
    if (curves.includes(id) || id.startsWith("bins-")) view.signal("hidden", [...hidden]);
    return view.runAsync();
  };

  const update = () => {
    const title = document.querySelector('[data-title="throughput"]');
    if (title) title.textContent = checked("throughput").dataset.label;
    return Promise.all([...views].map(([id, view]) => set(id, view)));
  };

  const cell = (row, kind, text, number) => {
    const made = row.appendChild(document.createElement(kind));
    made.textContent = text;
    if (number) made.className = "num";
    return made;
  };

  const binTable = (metric, { edges, counts }) => {
    const title = document.querySelector(`[data-title="bins-${metric}"]`).textContent;
    const box = document.createElement("div");
    box.className = "scroll";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", `Bins of ${title}`);
    const table = box.appendChild(document.createElement("table"));
    table.createCaption().textContent = `${title}, number of samples`;
    const head = table.createTHead().insertRow();
    cell(head, "th", lengths.includes(metric) ? "Tokens" : "Milliseconds").scope = "col";
    for (const deployment of Object.keys(counts)) cell(head, "th", deployment, true).scope = "col";
    const body = table.createTBody();
    for (let bin = 0; bin + 1 < edges.length; bin += 1) {
      const row = body.insertRow();
      cell(row, "th", rangeOf(metric)(edges[bin], edges[bin + 1])).scope = "row";
      for (const of of Object.values(counts)) cell(row, "td", String(of[bin]), true);
    }
    return box;
  };

  const writeBins = () => {
    const place = document.getElementById("bins");
    if (!place) return;
    const tables = Object.entries(data.distributions[index("load")]).map(([metric, bins]) => binTable(metric, bins));
    place.replaceChildren(...tables);
  };

  const drawGroups = async (...names) => {
    await Promise.all(names.flatMap((name) => groups[name]).map(([id, spec]) => draw(id, spec())));
    await update();
  };

  const drawAll = async () => {
    await drawGroups(...Object.keys(groups));
    document.documentElement.dataset.drawn = "true";
  };

  for (const button of document.querySelectorAll("[data-series]")) {
    button.addEventListener("click", () => {
      const name = names[Number(button.dataset.series)];
      const shown = hidden.delete(name);
      if (!shown) hidden.add(name);
      for (const same of document.querySelectorAll(`[data-series="${button.dataset.series}"]`)) {
        same.setAttribute("aria-pressed", String(shown));
      }
      update();
    });
  }
  for (const input of document.querySelectorAll(".choice input")) input.addEventListener("change", update);
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", async () => {
      const link = document.createElement("a");
      const text = await views.get(button.dataset.save).toSVG();
      link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
      link.download = `${button.dataset.save}.svg`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }
  for (const [list, group] of [["panel", "curves"], ["load", "bins"], ["point", "lines"]]) {
    chosen(list)?.addEventListener("change", () => drawGroups(group));
  }
  chosen("load")?.addEventListener("change", writeBins);
  writeBins();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  window.addEventListener("beforeprint", () => {
    // Tables that repeat a plot are not printed.
    for (const details of document.querySelectorAll("details:not([data-screen])")) details.open = true;
  });
  drawAll();
})();
