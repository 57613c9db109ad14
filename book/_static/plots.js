// Draws the figures of a page: each .sl-plot holds a plotly figure as JSON (servelib/notebook/render.py).
// plotly.js is loaded once, when the page is idle or a figure comes near; colours follow the theme.
(() => {
  "use strict";
  const library = new URL("vendor/plotly.min.js", document.currentScript.src).href;
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 600px)");
  const touch = matchMedia("(pointer: coarse)");
  const figures = new Map(); // element -> { figure, host, frame }
  let loading;

  const load = () => loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = library;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js did not load"));
    document.head.append(script);
  });

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isAxis = (key) => /^[xy]axis\d*$/.test(key);
  const isObject = (value) => value && typeof value === "object" && !Array.isArray(value);
  const merge = (base, over) => {
    const result = { ...base };
    for (const [key, value] of Object.entries(over ?? {})) {
      result[key] = isObject(value) && isObject(base?.[key]) ? merge(base[key], value) : value;
    }
    return result;
  };

  const themed = (layout, height) => {
    const text = css("--pst-color-text-base"), line = css("--pst-color-border");
    const small = narrow.matches;
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, automargin: true };
    const axes = Object.keys({ xaxis: 0, yaxis: 0, ...layout }).filter(isAxis);
    const clear = "rgba(0,0,0,0)";
    return merge(layout, {
      height,
      autosize: true,
      paper_bgcolor: clear,
      plot_bgcolor: clear,
      uirevision: "keep",
      dragmode: touch.matches ? false : layout.dragmode ?? "zoom",
      font: { color: text, family: css("--pst-font-family-base") || "sans-serif", size: small ? 12 : 14 },
      hoverlabel: { bgcolor: css("--pst-color-surface"), bordercolor: line, font: { color: text } },
      legend: {
        bgcolor: clear,
        font: { color: text },
        ...(small && { orientation: "h", x: 0, xanchor: "left", y: -72 / (height - 120), yanchor: "top" }),
      },
      ...(small && { margin: merge(layout.margin ?? {}, { l: 8, r: 8, pad: 2 }) }),
      ...Object.fromEntries(axes.map((key) => [key, axis])),
    });
  };

  const render = (element) => {
    const { figure, host, frame } = figures.get(element);
    const shown = figure.frames?.[frame];
    const traces = shown?.traces ?? shown?.data?.map((_, index) => index) ?? [];
    const data = structuredClone(figure.data);
    traces.forEach((trace, index) => { data[trace] = merge(data[trace], structuredClone(shown.data[index])); });
    const height = figure.layout.height ?? 420;
    const layout = themed(merge(structuredClone(figure.layout), structuredClone(shown?.layout ?? {})),
      narrow.matches ? height + 60 : height);
    return window.Plotly.react(host, data, layout, { responsive: true, displayModeBar: false });
  };

  // A native range input: keyboard, touch and screen readers work as they do everywhere else.
  const control = (element, number) => {
    const state = figures.get(element), { frames, layout } = state.figure;
    const box = document.createElement("div"), label = document.createElement("label");
    const input = document.createElement("input"), output = document.createElement("output");
    box.className = "sl-control";
    input.type = "range";
    input.id = `sl-control-${number}`;
    Object.assign(input, { min: 0, max: frames.length - 1, step: 1, value: state.frame });
    label.htmlFor = input.id;
    label.textContent = layout.meta.control.label;
    output.setAttribute("for", input.id);
    output.setAttribute("aria-live", "off"); // aria-valuetext already says it
    const show = () => {
      state.frame = Number(input.value);
      output.textContent = frames[state.frame].name;
      input.setAttribute("aria-valuetext", frames[state.frame].name);
    };
    input.addEventListener("input", () => { show(); if (element.dataset.drawn) render(element); });
    show();
    box.append(label, input, output);
    element.before(box);
  };

  // The control stands from the start, so that nothing moves when the figure is drawn.
  const prepare = (element, number) => {
    const figure = JSON.parse(element.querySelector("script").textContent);
    const host = document.createElement("div");
    figures.set(element, { figure, host, frame: figure.layout.meta?.control?.initial ?? 0 });
    if (figure.frames?.length) control(element, number);
  };

  const draw = async (element) => {
    const { host } = figures.get(element);
    if (host.isConnected) return;
    element.append(host);
    await load();
    await render(element);
    element.dataset.drawn = "true";
  };

  const redraw = () => figures.forEach((_, element) => { if (element.dataset.drawn) render(element); });
  const follow = () => {
    new MutationObserver(redraw).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
    narrow.addEventListener("change", redraw);
  };

  // For a page that makes its figures as it goes (lab.js): draw `figure` in `element`, anew each time.
  const show = async (element, figure) => {
    if (!figures.size) follow();
    const host = figures.get(element)?.host ?? element.appendChild(document.createElement("div"));
    figures.set(element, { figure, host });
    await load();
    await render(element);
    element.dataset.drawn = "true";
  };
  window.servingTokensPlots = { load, show };

  document.addEventListener("DOMContentLoaded", () => {
    const all = [...document.querySelectorAll(".sl-plot")];
    if (!all.length) return;
    all.forEach(prepare);
    const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
    }), { rootMargin: "400px" });
    all.forEach((element) => near.observe(element));
    // Printing cannot wait for a download: have the library at hand once the page has settled.
    addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(() => load()));
    follow();

    let theme; // paper is white, whatever the screen shows
    addEventListener("beforeprint", () => {
      theme = root.dataset.theme;
      root.dataset.theme = "light";
      all.forEach(draw);
      redraw();
    });
    addEventListener("afterprint", () => { root.dataset.theme = theme; });
  });
})();
