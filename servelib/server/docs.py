"""``/docs``: the API as a page that works offline. Scripts and styles come from an installed package."""

from __future__ import annotations

from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException

PARTS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


def serve_docs(app: FastAPI) -> None:
    """Add the page and its parts, which are files of the package ``fastapi-swagger``.

    Its own ``patch_fastapi`` is not used: it also claims ``/``, which here stays a 404 like every path
    that means nothing.
    """
    files = resources.files("fastapi_swagger.resources")

    @app.get("/docs", include_in_schema=False)
    async def docs(http: Request) -> Response:
        script, style, icon = (str(http.url_for("docs_part", name=name).path) for name in PARTS)
        return get_swagger_ui_html(
            openapi_url=f"{http.scope.get('root_path', '')}{app.openapi_url}",
            title=f"{app.title}: the API",
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url=icon,
            swagger_ui_parameters={"tryItOutEnabled": True, "validatorUrl": None},
        )

    @app.get("/docs/{name}", include_in_schema=False)
    async def docs_part(name: str) -> Response:
        if name not in PARTS:
            raise HTTPException(404)
        return Response(files.joinpath(name).read_bytes(), media_type=PARTS[name])
