// The dashboard's live part: one stream of looks, a switch to freeze it, two charts, and keys.
(() => {
  "use strict";
  const base = document.querySelector('meta[name="base"]')?.content ?? "/";
  const freeze = document.getElementById("freeze");
  const frozen = () => sessionStorage.getItem("relevo-frozen") === "yes";

  // Times in the reader's own zone; the title keeps the exact one.
  const localise = (root) => {
    for (const time of root.querySelectorAll("time.clock[data-ms]")) {
      const at = new Date(Number(time.dataset.ms));
      const pad = (n, size = 2) => String(n).padStart(size, "0");
      time.textContent =
        `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
    }
  };
  localise(document);
  document.addEventListener("htmx:after:swap", () => localise(document));

  const refresh = () => {
    if (!frozen()) document.body.dispatchEvent(new CustomEvent("relevo:look"));
  };

  // Charts
  const plots = [];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const span = (first, last) => {
    const end = last || Date.now() / 1000;
    return [Math.min(first || end, end - 120), end];
  };
  // Seconds are told as long as there is room for them.
  const clock = (ticks) => {
    const isShort = ticks.length > 1 && ticks[1] - ticks[0] < 60;
    const parts = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(isShort && { second: "2-digit" }) };
    return ticks.map((seconds) => new Date(seconds * 1000).toLocaleTimeString([], parts));
  };
  const draw = (element, data, paints) => {
    const labels = element.dataset.labels.split("|");
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: element.clientWidth, height: 190, padding: [10, 30, 0, 0],
      legend: { live: false }, cursor: { show: false },
      scales: { x: { range: (_, first, last) => span(first, last) }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [{ ...axis, size: 30, space: 90, values: (_, ticks) => clock(ticks) }, { ...axis, size: 46 }],
      series: [{}, ...labels.map((label, place) => ({
        label, stroke: colour(paints[place]), width: 2, points: { show: false },
        fill: `${colour(paints[place])}22`,
      }))],
    };
    element.replaceChildren();
    return new uPlot(options, data, element);
  };
  // Of one point alone uPlot makes a day.
  const columns = (places) => {
    const shown = rows.length === 1 ? [[rows[0][0] - 120, null, null, null, null], ...rows] : rows;
    return places.map((place) => shown.map((row) => row[place]));
  };
  const charts = [
    { id: "plot-rates", places: [0, 3, 4], paints: ["--cool", "--good"] },
    { id: "plot-backlog", places: [0, 1, 2], paints: ["--accent", "--cool"] },
  ];
  let rows = [];
  const drawAll = () => {
    for (const chart of charts) {
      const element = document.getElementById(chart.id);
      if (element && rows.length) plots.push({ chart, plot: draw(element, columns(chart.places), chart.paints) });
    }
  };
  const redraw = () => {
    for (const { plot } of plots.splice(0)) plot.destroy();
    drawAll();
  };
  const history = document.querySelector("[data-history]");
  if (history && window.uPlot) {
    fetch(history.dataset.history).then((answer) => answer.json()).then((found) => {
      rows = found;
      drawAll();
    }).catch(() => {});
    document.addEventListener("relevo:theme", redraw);
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      redraw();
    });
  }
  const extend = (point) => {
    if (!point || !history || (rows.length && rows[rows.length - 1][0] >= point[0])) return;
    rows = [...rows, point].slice(-600);
    if (!plots.length) drawAll();
    for (const { chart, plot } of plots) plot.setData(columns(chart.places));
  };

  // The stream; only pages that are looked at hold one.
  let stream = null;
  const tell = () => {
    if (!freeze) return;
    const isLost = freeze.classList.contains("lost");
    freeze.setAttribute("aria-pressed", String(frozen()));
    freeze.querySelector(".word").textContent =
      frozen() ? freeze.dataset.off : isLost ? freeze.dataset.lost : freeze.dataset.on;
  };
  const follow = () => {
    stream?.close();
    stream = null;
    if (!freeze || frozen() || document.hidden) return tell();
    stream = new EventSource(freeze.dataset.stream);
    stream.addEventListener("look", (event) => {
      const told = JSON.parse(event.data);
      freeze.classList.toggle("lost", !told.is_fresh);
      tell();
      extend(told.point);
      refresh();
    });
    stream.addEventListener("error", () => {
      freeze.classList.add("lost");
      tell();
    });
    tell();
  };
  const turn = () => {
    sessionStorage.setItem("relevo-frozen", frozen() ? "no" : "yes");
    follow();
    refresh();
  };
  freeze?.addEventListener("click", turn);
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => stream?.close());
  follow();
  // A change of many jobs is watched more closely than the rest.
  setInterval(() => {
    if (document.querySelector('[data-quick="yes"]')) refresh();
  }, 700);

  // Keys: g and a letter go somewhere, f freezes, ? shows the list.
  const places = { o: "", d: "deliveries", q: "queues", j: "jobs", x: "dead", f: "flows", b: "breakers", p: "recurring", w: "workers", e: "effects", u: "usage", a: "audit", s: "search" };
  let isGoing = 0;
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (Date.now() - isGoing < 1500 && event.key in places) {
      location.href = base + places[event.key];
    } else if (event.key === "g") {
      isGoing = Date.now();
      return;
    } else if (event.key === "f") {
      turn();
    } else if (event.key === "?") {
      document.getElementById("keys")?.showModal();
    }
    isGoing = 0;
  });
})();
