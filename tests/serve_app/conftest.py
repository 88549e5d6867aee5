"""Fixtures of the HTTP tests: one card, a fresh scripted backend per test, and an in-process client."""

from collections.abc import AsyncIterator

import httpx
import pytest

from messages.model import ModelCard
from serve_app.config import HttpConfig
from serve_app.http import HttpApp, create_app
from tests.serve_app.fakes import FakeBackend, model_card, ready


@pytest.fixture(scope="session")
def card() -> ModelCard:
    """The fake model's card; building its tokenizer files once is enough."""
    return model_card()


@pytest.fixture
def backend(card: ModelCard) -> FakeBackend:
    """A backend whose model is ready."""
    return FakeBackend(ready(card))


@pytest.fixture
def config() -> HttpConfig:
    """Default settings; tests that need others override this fixture or make their own app."""
    return HttpConfig()


@pytest.fixture
def app(backend: FakeBackend, config: HttpConfig) -> HttpApp:
    """The app under test."""
    return create_app(backend, config)


@pytest.fixture
async def client(app: HttpApp) -> AsyncIterator[httpx.AsyncClient]:
    """Speaks to the app in process."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http
