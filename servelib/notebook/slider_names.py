"""Names and values for a screen reader on the sliders of a panel, which ipywidgets leaves out.

Its handles have no name, and a logarithmic slider reads out the exponent. This invisible widget
gives each handle its slider's label, and a single handle the number that the eye sees beside it.
"""

from __future__ import annotations

import anywidget
import traitlets

_SCRIPT = """
function name(panel) {
  for (const slider of panel.querySelectorAll(".widget-slider")) {
    const label = slider.querySelector(".widget-label")?.textContent ?? "";
    const value = slider.querySelector(".widget-readout")?.textContent;
    const handles = slider.querySelectorAll(".noUi-handle");
    handles.forEach((handle, i) => {
      set(handle, "aria-label", handles.length > 1 ? `${label}, ${i ? "to" : "from"}` : label);
      if (handles.length === 1 && value) set(handle, "aria-valuetext", value);
    });
  }
}
function set(node, key, value) {
  if (node.getAttribute(key) !== value) node.setAttribute(key, value);
}
function render({ model, el }) {
  let observer, frame;
  const begin = () => {
    const panel = el.closest("." + model.get("panel"));
    if (!panel) { frame = requestAnimationFrame(begin); return; }
    observer = new MutationObserver(() => name(panel));
    observer.observe(panel, {
      subtree: true, childList: true, characterData: true, attributeFilter: ["aria-valuetext"],
    });
    name(panel);
  };
  begin();
  return () => { cancelAnimationFrame(frame); observer?.disconnect(); };
}
export default { render };
"""


class SliderNames(anywidget.AnyWidget):
    """Put one among the children of a box that has the CSS class ``panel``."""

    _esm = _SCRIPT
    panel = traitlets.Unicode().tag(sync=True)
