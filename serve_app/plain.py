"""A JSON response in two ASGI messages."""

from starlette.types import Send


async def send_json(
    send: Send, body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> None:
    """Write a whole response whose body is already encoded."""
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in headers),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
