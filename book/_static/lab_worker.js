// Runs the package's own files with Pyodide, away from the page's thread (book/_ext/lab_assets.py ships both).
// In: { start } once, then { id, request }, request as servelib.sim.lab takes it. Out: { progress }, { ready },
// { id, answer, ms }, or { failed }.
const network = self.fetch.bind(self);
let lab;

// Read whole with progress, then checked against its hash: nothing that was changed on the way is run.
const download = async (address, { name, integrity }, onBytes) => {
  const response = await network(address);
  if (!response.ok) throw new Error(`${address}: the server answered ${response.status}`);
  const parts = [], reader = response.body.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    parts.push(next.value);
    onBytes(next.value.length);
  }
  const type = name.endsWith(".wasm") ? "application/wasm" : /js$/.test(name) ? "text/javascript" : "";
  const here = URL.createObjectURL(new Blob(parts, { type }));
  await network(here, { integrity }).catch(() => { throw new Error(`${address} is not the file this page names`); });
  return here;
};

const start = async ({ base, files, archive }) => {
  const total = files.reduce((sum, file) => sum + file.bytes, 0);
  let read = 0;
  const onBytes = (bytes) => postMessage({ progress: (read += bytes) / total });
  const here = Object.fromEntries(await Promise.all(
    files.map(async (file) => [base + file.name, await download(base + file.name, file, onBytes)]),
  ));
  self.fetch = (address, options) => network(here[String(address)] ?? address, options);
  const { loadPyodide } = await import(here[`${base}pyodide.mjs`]);
  const python = await loadPyodide({
    indexURL: base,
    createPyodideModule: (await import(here[`${base}pyodide.asm.mjs`])).default,
  });
  const ours = await network(archive);
  if (!ours.ok) throw new Error(`${archive}: the server answered ${ours.status}`);
  python.unpackArchive(new Uint8Array(await ours.arrayBuffer()), "zip", { extractDir: "/lab" });
  python.runPython("import sys; sys.path.insert(0, '/lab'); from servelib.sim.lab import Lab; lab = Lab()");
  lab = python.globals.get("lab");
};

onmessage = async ({ data }) => {
  try {
    const before = performance.now();
    if (data.start) {
      await start(data.start);
      postMessage({ ready: performance.now() - before });
    } else {
      const answer = JSON.parse(lab.answer(JSON.stringify(data.request)));
      postMessage({ id: data.id, answer, ms: performance.now() - before });
    }
  } catch (error) {
    postMessage({ failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
