"""servelib: a language-model inference server, small enough to read and honest enough to measure.

The package has two planes. The control plane (requests, engines' decisions, harness, simulator,
text) never imports torch; the data plane (``servelib.model``, the tensor caches of ``servelib.kv``)
never makes a scheduling decision.
"""

__version__ = "0.1.0"
