"""The servers that `serve_speed.py` measures beside ours: serve_peers.py litserve|naive MODEL PORT."""

from __future__ import annotations

import base64
import sys
from typing import Any

import litserve
import numpy as np
import uvicorn
from fastapi import Body, FastAPI

import vitrail

BATCH, WAIT = 16, 0.005


class Api(litserve.LitAPI):  # type: ignore[misc]
    """As LitServe's documentation shows it: decode, batch, predict, unbatch, encode."""

    model = ""

    def setup(self, device: str) -> None:
        self.classifier = vitrail.load(self.model)

    def decode_request(self, request: dict[str, str]) -> Any:
        return self.classifier.preprocessing.pixels(base64.b64decode(request["picture"]))

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, pixels: Any) -> Any:
        return self.classifier.predict_pixels(pixels, top=5)

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"label": output.label, "score": output.score, "top": output.top}


def serve_litserve(model: str, port: int) -> None:
    api = Api(max_batch_size=BATCH, batch_timeout=WAIT, api_path="/v1/predict")
    api.model = model
    litserve.LitServer(api, accelerator="cpu", fast_queue=True).run(
        port=port, log_level="error", generate_client_file=False
    )


def serve_naive(model: str, port: int) -> None:
    classifier, app = vitrail.load(model), FastAPI()

    @app.post("/v1/predict")
    def predict(picture: str = Body(embed=True)) -> dict[str, Any]:
        found = classifier.predict(base64.b64decode(picture), top=5)[0]
        return {"label": found.label, "score": found.score, "top": found.top}

    uvicorn.run(app, port=port, log_level="error")


if __name__ == "__main__":
    (serve_litserve if sys.argv[1] == "litserve" else serve_naive)(sys.argv[2], int(sys.argv[3]))
