// Chapter 4's two things to play with, made from what the notebook's run left in the page as JSON:
// a text box that tokenises (servelib/notebook/pieces.py) and a stream to replay (replay.py).
(() => {
  "use strict";
  const LONGEST = 2000; // characters of a text, so that typing stays quick
  const utf8 = new TextEncoder();
  const visible = { " ": "␣", "\n": "↵", "\t": "⇥" };
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const dataOf = (element) => JSON.parse(element.querySelector("script").textContent);
  const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

  // Byte-pair encoding, as servelib/text/bpe.py: a token is written as its bytes in hex.
  class BytePairs {
    constructor({ pattern, table }) {
      this.pattern = new RegExp(pattern, "gu");
      this.ids = new Map(table.map((hex, number) => [hex, 256 + number]));
      for (let byte = 0; byte < 256; byte++) this.ids.set(byte.toString(16).padStart(2, "0"), byte);
    }

    pieces(text) {
      return (text.match(this.pattern) ?? []).flatMap((piece) => this.merged(
        Array.from(utf8.encode(piece), (byte) => byte.toString(16).padStart(2, "0"))));
    }

    encode(text) { return this.pieces(text).map((piece) => this.ids.get(piece)); }

    merged(parts) {
      for (;;) {
        let best = Infinity, left, right;
        for (let i = 0; i + 1 < parts.length; i++) {
          const id = this.ids.get(parts[i] + parts[i + 1]);
          if (id < best) { best = id; left = parts[i]; right = parts[i + 1]; }
        }
        if (best === Infinity) return parts;
        const joined = [];
        for (const part of parts) {
          if (joined.at(-1) === left && part === right) joined[joined.length - 1] = left + right;
          else joined.push(part);
        }
        parts = joined;
      }
    }
  }

  const shown = (hex) => {
    const spelled = hex.toUpperCase().match(/../g).join(" ");
    let text;
    try {
      const bytes = Uint8Array.from(hex.match(/../g), (two) => parseInt(two, 16));
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch { return spelled; }
    const letters = [...text];
    if (letters.some((c) => !(c in visible) && (c < " " || c === "\x7f"))) return spelled;
    return letters.map((c) => visible[c] ?? c).join("");
  };

  const box = (element, number) => {
    const data = dataOf(element), pairs = new BytePairs(data);
    const id = `sl-tokens-${number}`;
    const input = make("textarea", { id, rows: 3, maxLength: LONGEST, value: data.text, spellcheck: false });
    const said = make("output", { htmlFor: id });
    const list = make("ol", { className: "sl-pieces" });
    list.setAttribute("aria-label", "Tokens");
    const show = () => {
      const text = input.value, pieces = pairs.pieces(text);
      list.replaceChildren(...pieces.map((piece) => make("li",
        { className: piece.length === 2 ? "sl-byte" : "" },
        make("span", { textContent: shown(piece) }), " ", make("small", { textContent: pairs.ids.get(piece) }))));
      const bytes = utf8.encode(text).length;
      said.textContent = `${counted(pieces.length, "token")} for ${counted([...text].length, "character")}, `
        + counted(bytes, "byte") + (pieces.length ? `: ${(bytes / pieces.length).toFixed(2)} bytes a token` : "");
    };
    input.addEventListener("input", show);
    element.replaceChildren(make("label", { htmlFor: id, textContent: data.label }), input, said, list);
    element.servelibEncode = (text) => pairs.encode(text); // for the tests of the pages
    show();
  };

  // U+FFFD is marked, not only coloured.
  const marked = (text) => text.split(/(\ufffd)/).filter(Boolean)
    .map((part) => (part === "\ufffd" ? make("mark", { textContent: part }) : part));

  const replay = (element, number) => {
    const { start, steps } = dataOf(element);
    const id = `sl-replay-${number}`;
    const input = make("input", { id, type: "range", min: 1, max: steps.length, step: 1, value: start });
    const said = make("output", { htmlFor: id });
    said.setAttribute("aria-live", "off"); // aria-valuetext says it
    const naive = make("p"), correct = make("p");
    const show = () => {
      const done = steps.slice(0, Number(input.value)), last = done.at(-1);
      said.textContent = `${done.length} of ${steps.length}: ${last.token} arrives, `
        + (last.held ? `${last.held} held back` : "nothing held back");
      const broken = done.map((step) => step.naive).join("").split("\ufffd").length - 1;
      input.setAttribute("aria-valuetext", `${said.textContent}, ${counted(broken, "broken character")} so far in the naive text`);
      naive.replaceChildren(...marked(done.map((step) => step.naive).join("")));
      correct.replaceChildren(...marked(done.map((step) => step.correct).join("")));
    };
    input.addEventListener("input", show);
    show();
    element.prepend(
      make("div", { className: "sl-replay-control" },
        make("label", { htmlFor: id, textContent: "tokens received" }), input, said),
      make("div", { className: "sl-replay-texts" },
        make("section", {}, make("strong", { textContent: "each token decoded alone" }), naive),
        make("section", {}, make("strong", { textContent: "with the detokeniser" }), correct)));
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".sl-tokens").forEach(box);
    document.querySelectorAll(".sl-replay").forEach(replay);
  });
})();
