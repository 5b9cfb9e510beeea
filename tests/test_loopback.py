"""A file is handed over once, to whom knows its address, and to this machine alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue

import pytest

from trace_doctor.errors import OutputError
from trace_doctor.loopback import UI, hand_over

CONTENT = bytes(range(256)) * 10_000


class Offer:
    """A file on offer: `address` and `path` of it, `done` once the server is gone."""

    def __init__(self, file: Path, wait_s: float = 30) -> None:
        links: Queue[str] = Queue()
        self.done: Future[None] = ThreadPoolExecutor(1).submit(hand_over, file, links.put, port=0, wait_s=wait_s)
        self.link = links.get(timeout=10)
        start, _, rest = self.link.partition("?url=http://")
        self.address, _, path = rest.partition("/")
        self.start, self.path = start, "/" + path

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.address, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a & b?#.json.gz"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def offer(file: Path) -> Iterator[Offer]:
    found = Offer(file)
    yield found
    with suppress(OSError):  # it may be gone already
        found.ask(found.path)
    found.done.result(10)


def test_served_once_and_then_gone(offer: Offer) -> None:
    status, headers, body = offer.ask(offer.path)
    assert (status, body == CONTENT) == (200, True)
    assert headers["Access-Control-Allow-Origin"] == UI == "https://ui.perfetto.dev"
    assert headers["Cache-Control"] == "no-store"
    offer.done.result(10)
    with pytest.raises(OSError):
        offer.ask(offer.path)


def test_the_address_is_the_ui_s_with_one_of_this_machine(offer: Offer) -> None:
    assert offer.start == "https://ui.perfetto.dev/#!/"
    assert offer.address.split(":")[0] == "127.0.0.1"
    assert offer.path.endswith("/a___b__.json.gz")
    assert len(offer.path) > 30


def test_nothing_else_is_served(offer: Offer) -> None:
    name = offer.path.rpartition("/")[2]
    for path in ("/", f"/{name}", "/../../etc/passwd", f"{offer.path}/..", offer.path + "x"):
        status, _, body = offer.ask(path)
        assert (status, CONTENT[:100] in body) == (404, False)
    assert offer.ask(offer.path, Host="evil.example")[0] == 404
    assert offer.ask(offer.path, "POST")[0] == 501
    assert not offer.done.done()


def test_a_browser_may_ask_first(offer: Offer) -> None:
    status, headers, _ = offer.ask(offer.path, "OPTIONS", Origin=UI)
    assert (status, headers["Access-Control-Allow-Origin"], headers["Access-Control-Allow-Private-Network"]) == (
        204,
        UI,
        "true",
    )
    assert not offer.done.done()


def test_a_silent_connection_stops_nobody(offer: Offer) -> None:
    host, _, port = offer.address.partition(":")
    with socket.create_connection((host, int(port))):
        assert offer.ask(offer.path)[0] == 200
        offer.done.result(10)


def test_who_hangs_up_has_not_got_it(offer: Offer, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = CONTENT * 20  # than the kernel keeps for a reader that sleeps
    file.write_bytes(more)
    host, _, port = offer.address.partition(":")
    with socket.create_connection((host, int(port))) as hanging:
        hanging.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        hanging.sendall(f"GET {offer.path} HTTP/1.1\r\nHost: {offer.address}\r\n\r\n".encode())
        assert hanging.recv(15) == b"HTTP/1.0 200 OK"
    status, _, body = offer.ask(offer.path)
    assert (status, body == more, capfd.readouterr().err) == (200, True, "")


def test_nobody_is_waited_for_for_ever(file: Path) -> None:
    offer = Offer(file, wait_s=0.1)
    with pytest.raises(OutputError, match="nobody fetched the file"):
        offer.done.result(10)


def test_a_taken_port_is_said(file: Path) -> None:
    refused = pytest.raises(OutputError, match="can't be listened on")
    with socket.create_server(("127.0.0.1", 0)) as taken, refused as caught:
        hand_over(file, print, port=taken.getsockname()[1])
    assert "trace_processor" in str(caught.value)
