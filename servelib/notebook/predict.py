"""Commit to a guess before the measurement, and see it again beside the answer.

Works in JupyterLab and in the rendered page, without a kernel: the guess lives in the browser, in
this page only, and is sent nowhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from IPython.display import HTML

_ASK = """
<fieldset class="sl-predict" id="{id}"><legend>{question}</legend>
{options}
<p class="sl-predict-said" aria-live="polite"></p></fieldset>
<script>
(() => {{
  const box = document.getElementById({id_js});
  const kept = (globalThis.servelibGuesses ??= {{}});
  box.addEventListener("change", event => {{
    kept[{id_js}] = event.target.value;
    box.querySelector(".sl-predict-said").textContent = "Noted. The answer stands beside the measurement.";
    document.dispatchEvent(new CustomEvent("servelib-guess"));
  }});
}})();
</script>
"""

_REVEAL = """
<div class="sl-reveal"><p><strong>{question}</strong><br>
<span data-guess="{id}">You did not guess.</span> <strong>{kind}: {answer}.</strong></p></div>
<script>
(() => {{
  const spot = document.querySelectorAll('[data-guess="' + {id_js} + '"]');
  const show = () => {{
    const guess = globalThis.servelibGuesses?.[{id_js}];
    if (guess) spot.forEach(s => s.textContent = "You said: " + guess + ".");
  }};
  document.addEventListener("servelib-guess", show);
  show();
}})();
</script>
"""


class Prediction:
    """A question with a few answers to choose from, asked now and answered later.

    ``ask()`` shows the choices; ``reveal(answer)`` shows the reader's choice beside it.
    """

    def __init__(self, name: str, question: str, options: Sequence[str]) -> None:
        if len(options) < 2:
            raise ValueError(f"options: got {len(options)}, a question needs at least 2 answers")
        self._id = f"sl-predict-{name}"
        self._question = question
        self._options = options

    def ask(self) -> HTML:
        """The question, as radio buttons."""
        options = "\n".join(
            f'<label><input type="radio" name="{self._id}" value="{html.escape(option, quote=True)}"> '
            f"{html.escape(option)}</label>"
            for option in self._options
        )
        question = html.escape(self._question)
        return HTML(_ASK.format(id=self._id, id_js=json.dumps(self._id), question=question, options=options))

    def reveal(self, answer: str, *, kind: str = "Measured") -> HTML:
        """What the reader said, and the answer; ``kind`` says how it was come by."""
        question = html.escape(self._question)
        return HTML(
            _REVEAL.format(
                id=self._id,
                id_js=json.dumps(self._id),
                question=question,
                kind=html.escape(kind),
                answer=html.escape(answer),
            )
        )
