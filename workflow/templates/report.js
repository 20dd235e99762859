"use strict";
(() => {
  const data = JSON.parse(document.getElementById("drawings").textContent);
  const names = data.series;
  const views = new Map();
  const hidden = new Set();
  const checked = (name) => document.querySelector(`input[name="${name}"]:checked`);
  const kind = (id) => (id === "throughput" ? "throughput" : "latency");

  const tip = document.body.appendChild(document.createElement("div"));
  tip.id = "tip";
  tip.hidden = true;

  // Text nodes only: a tooltip must not turn a name into markup.
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

  const set = (view, id) => {
    view.signal("choice", checked(kind(id)).value).signal("hidden", [...hidden]);
    return view.runAsync();
  };

  const update = () => {
    const title = document.querySelector('[data-title="throughput"]');
    if (title) title.textContent = checked("throughput").dataset.label;
    return Promise.all([...views].filter(([id]) => id !== "startup").map(([id, view]) => set(view, id)));
  };

  const drawAll = async () => {
    const panel = document.getElementById("panel");
    const specs = panel ? data.panels[panel.value] : {};
    const ids = panel ? ["throughput", "ttft", "tpot", "itl", "e2el"] : [];
    await Promise.all([draw("startup", data.startup), ...ids.map((id) => draw(id, specs[id]))]);
    await update();
    document.documentElement.dataset.drawn = "true";
  };

  for (const button of document.querySelectorAll("[data-series]")) {
    button.addEventListener("click", () => {
      const name = names[Number(button.dataset.series)];
      const shown = hidden.delete(name);
      if (!shown) hidden.add(name);
      button.setAttribute("aria-pressed", String(shown));
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
  document.getElementById("panel")?.addEventListener("change", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  drawAll();
})();
