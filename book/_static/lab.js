// The lab page: a form made from the package's own list of settings, and figures of what it answers.
// Everything is computed by lab_worker.js; the settings live in the address. Needs plots.js and lab_figures.js.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  const about = window.servingTokensLab, root = document.getElementById("sl-lab");
  const assets = new URL(document.querySelector('script[src*="/lab.js"]').src);
  const at = (path) => new URL(path, assets).href;
  const make = (tag, options = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), options);
    element.append(...children);
    return element;
  };
  if (location.protocol === "file:") {
    root.append(make("p", { className: "sl-lab-note" },
      "A page opened from a file cannot start the lab: browsers let such a page load no other files. Run ",
      make("code", {}, "make serve-book"), " in the repository's folder and open the address that it prints, at ",
      make("code", {}, "/book/lab.html"), "."));
    return;
  }

  // The form ---------------------------------------------------------------------------------------------
  const inputs = {}, errors = {};
  const form = make("form", { className: "sl-lab-form", noValidate: true });
  form.setAttribute("aria-label", "settings");
  const linked = new URLSearchParams(location.search);
  for (const { name, label, choices, default: usual, low, high } of about.fields) {
    const id = `sl-lab-${name}`, given = linked.get(name) ?? usual;
    const input = choices.length
      ? make("select", {}, ...choices.map((choice) => new Option(choice[1], choice[0])))
      : make("input", { type: "number", min: low, max: high, step: "any", inputMode: "decimal" });
    Object.assign(input, { id, name, value: given });
    inputs[name] = input;
    errors[name] = make("p", { className: "sl-lab-error", id: `${id}-error`, ariaLive: "polite" });
    input.setAttribute("aria-describedby", `${id}-error`);
    const box = make("div", { className: "sl-lab-field" }, make("label", { htmlFor: id }, label), input);
    form.append(box);
    if (name === "rate") box.classList.add("sl-lab-wide");
    if (choices.some(([, shown]) => shown.length > 16)) box.classList.add("sl-lab-double");
    box.append(errors[name]);
  }
  // The rate also has a range input, eight steps to a doubling.
  const slide = make("input", { type: "range", id: "sl-lab-slide", min: -24, max: 80, step: 1 });
  slide.setAttribute("aria-label", "arrival rate, eight steps to a doubling");
  const rateToSlide = () => {
    slide.value = Math.round(8 * Math.log2(inputs.rate.value || 1));
    slide.setAttribute("aria-valuetext", `${inputs.rate.value} requests per second`);
  };
  slide.addEventListener("input", (event) => {
    event.stopPropagation();
    inputs.rate.value = Number((2 ** (slide.value / 8)).toPrecision(3));
    changed();
  });
  inputs.rate.after(slide);
  rateToSlide();

  const applies = () => { // a setting of other engines alone cannot be moved
    for (const { name, engines } of about.fields) {
      inputs[name].disabled = engines.length > 0 && !engines.includes(inputs.engine.value);
    }
  };
  applies();

  const settings = () => Object.fromEntries(about.fields.map(({ name, choices }) =>
    [name, choices.length ? inputs[name].value : Number(inputs[name].value || NaN)]));
  const remember = () => {
    const address = new URL(location);
    for (const { name, default: usual } of about.fields) {
      if (inputs[name].value === String(usual)) address.searchParams.delete(name);
      else address.searchParams.set(name, inputs[name].value);
    }
    history.replaceState(null, "", address);
  };

  // What is shown ----------------------------------------------------------------------------------------
  const size = (about.files.reduce((sum, file) => sum + file.bytes, 0) / 1e6).toFixed(1);
  const from = about.local ? "from this site" : `from ${new URL(about.base).host}`;
  const button = make("button", { type: "button", className: "sl-lab-start" }, `Start the lab (loads ${size} MB)`);
  const said = make("p", { className: "sl-lab-note", role: "status" },
    `Python for the browser (Pyodide ${about.version}) is loaded ${from} when you press the button.`);
  const bar = make("progress", { max: 1, value: 0, hidden: true });
  bar.setAttribute("aria-label", "loading Python");
  const headline = make("dl", { className: "sl-lab-numbers" });
  const notes = make("p", { className: "sl-conditions" });
  const results = make("div", { hidden: true }, headline, notes);
  const plot = (title) => {
    const element = make("div", { className: "sl-lab-plot" });
    element.setAttribute("role", "img");
    results.append(make("h3", {}, title), element);
    return element;
  };
  const rowsPlot = plot("Who waits and who runs");
  const play = make("button", { type: "button" }, "Play");
  const moment = make("input", { type: "range", id: "sl-lab-moment", min: 0, max: 400, value: 400 });
  const then = make("output", { htmlFor: "sl-lab-moment" });
  rowsPlot.after(make("div", { className: "sl-control" },
    play, make("label", { htmlFor: "sl-lab-moment" }, "moment"), moment, then));
  const latencyPlot = plot("How long it takes, as shares of requests and of gaps");
  const goodputPlot = plot("Goodput against the arrival rate");
  const conditions = make("p", { className: "sl-conditions" });
  const timing = make("p", { className: "sl-conditions" });
  results.append(conditions, timing);
  root.append(form, make("div", { className: "sl-lab-begin" }, button, bar, said), results);

  let shown, playing = false; // the last answer
  let points = new Map(), pointsOf; // rate -> goodput, and for which settings
  const figures = window.servingTokensLabFigures;
  const draw = (element, { alt, figure }) => {
    element.setAttribute("aria-label", alt);
    return window.servingTokensPlots.show(element, figure);
  };
  const now = () => (moment.value / moment.max) * shown.duration;
  const drawGoodput = () => draw(goodputPlot, figures.goodput(shown, points));
  const drawRun = () => Promise.all([
    draw(rowsPlot, figures.rows(shown, now())), draw(latencyPlot, figures.latency(shown)),
  ]);
  const sayMoment = () => {
    const { scheduled, admitted, end } = shown.rows, time = now(), past = (when) => when !== null && when <= time;
    const waits = scheduled.filter((_, i) => past(scheduled[i]) && !past(admitted[i]) && !past(end[i])).length;
    const runs = scheduled.filter((_, i) => past(admitted[i]) && !past(end[i])).length;
    then.textContent = `${time.toFixed(2)} s: ${waits} waiting, ${runs} running, ${end.filter(past).length} done`;
    moment.setAttribute("aria-valuetext", then.textContent);
  };
  const moveMoment = () => {
    sayMoment();
    const shape = `shapes[${figures.playhead}]`;
    return window.Plotly.relayout(rowsPlot.firstElementChild, { [`${shape}.x0`]: now(), [`${shape}.x1`]: now() });
  };
  moment.addEventListener("input", moveMoment);
  play.addEventListener("click", async () => {
    playing = !playing;
    play.textContent = playing ? "Pause" : "Play";
    if (playing && moment.value === moment.max) moment.value = 0;
    while (playing && Number(moment.value) < Number(moment.max)) {
      moment.value = Number(moment.value) + 1;
      await moveMoment();
      await new Promise(requestAnimationFrame);
    }
    playing = false;
    play.textContent = "Play";
  });

  // Asking and answering ---------------------------------------------------------------------------------
  let worker, ready = false, busy = false, dirty = true, since = 0, idle, loaded;
  const ask = (request) => new Promise((resolve) => {
    worker.onmessage = ({ data }) => (data.failed ? broke(data.failed) : resolve(data));
    worker.postMessage({ request });
  });
  const broke = (message) => {
    bar.hidden = true;
    button.disabled = ready; // before Python is here, trying again may help
    said.textContent = `The lab stopped: ${message}`;
    root.dataset.state = "broken";
  };
  const update = async () => {
    if (!ready || busy) return;
    busy = true;
    while (dirty) {
      dirty = false;
      root.dataset.state = "busy";
      const slow = setTimeout(() => { said.textContent = "Simulating ..."; }, 500);
      const asked = settings(), { answer, ms } = await ask({ settings: asked });
      clearTimeout(slow);
      said.textContent = loaded;
      for (const name in errors) {
        errors[name].textContent = answer.errors?.[name] ?? "";
        inputs[name].setAttribute("aria-invalid", String(Boolean(answer.errors?.[name])));
      }
      results.classList.toggle("sl-lab-stale", Boolean(answer.errors));
      if (answer.errors) continue;
      const first = !shown, curveOf = JSON.stringify({ ...asked, rate: 0 });
      shown = answer;
      results.hidden = false;
      headline.replaceChildren(...answer.headline.map(({ name, label, value }) =>
        make("div", {}, make("dt", {}, label), make("dd", { id: `sl-lab-out-${name}` }, value))));
      notes.textContent = answer.notes.map((note) => `* ${note}.`).join(" ");
      conditions.textContent = answer.conditions;
      if (curveOf !== pointsOf) [points, pointsOf] = [new Map(), curveOf];
      points.set(answer.point.rate, answer.point.goodput);
      await drawRun();
      sayMoment();
      const took = performance.now() - since;
      if (!first && !dirty) root.dataset.took = took.toFixed(0);
      timing.textContent = `${answer.completed} requests completed, ${answer.failed} failed. Simulated in ${ms.toFixed(0)} ms in `
        + `this browser${first ? "" : `, on the screen ${took.toFixed(0)} ms after the change`}.`;
    }
    busy = false;
    root.dataset.state = "shown";
    if (shown) drawGoodput();
    clearTimeout(idle);
    idle = setTimeout(fill, 250);
  };
  // The curve comes in point by point, while nothing else is asked for.
  const fill = async () => {
    if (busy || dirty || !shown || Object.values(errors).some((line) => line.textContent)) return;
    const rate = shown.rates.find((each) => !points.has(each));
    if (rate === undefined) { root.dataset.state = "complete"; return; }
    busy = true;
    const { answer } = await ask({ settings: settings(), rate });
    busy = false;
    if (dirty) { update(); return; }
    points.set(rate, answer.goodput);
    await drawGoodput();
    idle = setTimeout(fill, 0);
  };
  const changed = () => {
    since = performance.now();
    dirty = true;
    rateToSlide();
    applies();
    remember();
    update();
  };
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());

  button.addEventListener("click", () => {
    button.disabled = true;
    bar.hidden = false;
    root.dataset.state = "loading";
    said.textContent = `Loading Python ${from} ...`;
    window.servingTokensPlots.load();
    worker = new Worker(at("lab_worker.js"), { type: "module" });
    worker.onerror = (event) => broke(event.message || "the worker did not start");
    worker.onmessage = ({ data }) => {
      if (data.failed) broke(data.failed);
      if (data.progress !== undefined) bar.value = data.progress;
      if (data.ready === undefined) return;
      ready = true;
      button.hidden = bar.hidden = true;
      loaded = `Python is here, loaded ${from} in ${(data.ready / 1e3).toFixed(1)} s. Move a setting.`;
      since = performance.now();
      update();
    };
    const base = about.local ? at(about.base) : about.base;
    worker.postMessage({ start: { base, files: about.files, archive: at("vendor/servelib.zip") } });
  });
});
