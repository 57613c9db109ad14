// The lab page's figures: each function turns an answer of servelib.sim.lab into { alt, figure } for plots.js.
window.servingTokensLabFigures = (() => {
  "use strict";
  const colour = { wait: "#d9730d", prefill: "#9b6bd3", run: "#2f7fd1", good: "#1f9d6b", now: "#808891" };
  const number = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  const layout = (more) => ({
    template: "none", margin: { l: 64, r: 16, t: 8, b: 48 }, showlegend: false, hovermode: "closest", ...more,
  });
  const line = (x, y, name, color, more = {}, dash = "solid") => ({
    x, y, name, type: "scatter", mode: "lines", line: { color, width: 2, dash }, ...more,
  });

  // All bars of one kind are one path: a figure of a thousand bars is drawn as fast as one of ten.
  const bars = (from, to, color, width) => {
    const each = from.map((time, i) => (time === null || to[i] === null ? "" : `M${time},${i}L${to[i]},${i}`));
    return { type: "path", xref: "x", yref: "y", path: each.join("") || "M0,0", line: { color, width } };
  };
  const key = (name, color, width) => line([null], [null], name, color, { line: { color, width } });

  const rows = ({ rows, count, cache, duration }, moment) => {
    const n = rows.scheduled.length, thick = Math.min(8, Math.max(1.5, 260 / n)), kept = cache.time.length > 0;
    const most = (values) => Math.max(0, ...values);
    const panel = { yaxis: "y2", line: { color: colour.wait, width: 2, shape: "hv", dash: "dot" }, hovertemplate: "%{y} waiting at %{x:.2f} s<extra></extra>" };
    const data = [
      key("waits", colour.wait, 2), key("prefill", colour.prefill, 5), key("decode", colour.run, 5),
      line(count.time, count.waiting, "waiting", colour.wait, { ...panel, showlegend: false }),
      line(count.time, count.running, "running", colour.run, { ...panel, showlegend: false,
        line: { color: colour.run, width: 2, shape: "hv" }, hovertemplate: "%{y} running at %{x:.2f} s<extra></extra>" }),
    ];
    if (kept) {
      data.push(line(cache.time, cache.tokens, "held", colour.good, { yaxis: "y3", showlegend: false, fill: "tozeroy",
        line: { color: colour.good, width: 1.5, shape: "hv" }, hovertemplate: "%{y:,} tokens held at %{x:.2f} s<extra></extra>" }));
    }
    const room = cache.capacity ? ` of ${number(cache.capacity)} that fit` : "";
    const alt = `${n} requests over ${number(duration)} seconds, a row each: orange while it waits, purple in prefill, `
      + `blue in decode. Below: how many wait, at most ${most(count.waiting)}, and run, at most ${most(count.running)}`
      + (kept ? `; and the tokens in the cache, at most ${most(cache.tokens)}${room}.` : ". This engine keeps no cache.");
    const figure = {
      data,
      layout: layout({
        height: kept ? 600 : 480, showlegend: true, margin: { l: 64, r: 16, t: 36, b: 48 },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.01, yanchor: "bottom" },
        xaxis: { range: [0, duration || 1], title: { text: "seconds since the start of the run" }, anchor: kept ? "y3" : "y2" },
        yaxis: { range: [n, -1], domain: kept ? [0.5, 1] : [0.36, 1], title: { text: "request" } },
        yaxis2: { rangemode: "tozero", domain: kept ? [0.25, 0.44] : [0, 0.28], title: { text: "how many" } },
        ...(kept && { yaxis3: { rangemode: "tozero", domain: [0, 0.19], title: { text: "tokens held" } } }),
        shapes: [
          bars(rows.scheduled, rows.admitted, colour.wait, Math.min(thick, 1.5)),
          bars(rows.admitted, rows.first, colour.prefill, thick),
          bars(rows.first, rows.end, colour.run, thick),
          { type: "line", xref: "x", yref: "paper", y0: 0, y1: 1, x0: moment, x1: moment, line: { color: colour.now, width: 2 } },
        ],
      }),
    };
    return { alt, figure };
  };

  const latency = ({ ttft, gap, slo }) => {
    const share = (values) => values.map((_, i) => (100 * i) / (values.length - 1));
    const limit = (x, xref, y0, y1) => ({ type: "line", xref, yref: "paper", x0: x, x1: x, y0, y1,
      line: { color: colour.good, width: 2, dash: "dash" } });
    const within = { hovertemplate: "%{y:.1f} % within %{x:.4g}<extra></extra>" };
    const alt = "The share of requests whose first token came within so many seconds, and the share of gaps within so many "
      + `milliseconds. Dashed green lines mark the SLO, ${slo.ttft} s and ${number(1e3 * slo.gap)} ms.`;
    const figure = {
      data: [
        line(ttft, share(ttft), "TTFT", colour.wait, within),
        line(gap.map((seconds) => 1e3 * seconds), share(gap), "gap", colour.run, { ...within, xaxis: "x2", yaxis: "y2" }),
      ],
      layout: layout({
        height: 420,
        xaxis: { rangemode: "tozero", title: { text: "TTFT, seconds" } },
        xaxis2: { rangemode: "tozero", anchor: "y2", title: { text: "gap, milliseconds" } },
        yaxis: { domain: [0.62, 1], range: [-4, 104], title: { text: "% of requests" } },
        yaxis2: { domain: [0, 0.38], range: [-4, 104], title: { text: "% of gaps" } },
        shapes: [limit(slo.ttft, "x", 0.62, 1), limit(1e3 * slo.gap, "x2", 0, 0.38)],
      }),
    };
    return { alt, figure };
  };

  // points: [rate, goodput] pairs, as many as there are by now
  const goodput = ({ point, rates }, points) => {
    const all = [...points].sort((a, b) => a[0] - b[0]);
    const alt = "The share of requests that met the SLO against the arrival rate. A diamond marks your setting: "
      + `${point.rate} requests per second, ${(100 * point.goodput).toFixed(0)} %.`;
    const figure = {
      data: [
        line(all.map(([rate]) => rate), all.map(([, share]) => 100 * share), "goodput", colour.good,
          { mode: "lines+markers", marker: { size: 6 }, hovertemplate: "%{x:.3g} requests/s: %{y:.0f} %<extra></extra>" }),
        { x: [point.rate], y: [100 * point.goodput], type: "scatter", mode: "markers", hoverinfo: "skip",
          marker: { color: colour.prefill, size: 15, symbol: "diamond" } },
      ],
      layout: layout({
        height: 320,
        xaxis: { type: "log", dtick: Math.log10(2), tickformat: ".3~g", title: { text: "arrival rate, requests per second" },
          range: [Math.log10(rates[0]) - 0.03, Math.log10(rates.at(-1)) + 0.03] },
        yaxis: { range: [-4, 106], title: { text: "goodput, %" } },
      }),
    };
    return { alt, figure };
  };

  return { rows, latency, goodput, playhead: 3 }; // the index of the line that moves, among the shapes of `rows`
})();
