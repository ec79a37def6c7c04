"""Posts a ticket once: an earlier one of the same run is written anew.

The token goes to the host of `--url` only (redirects are refused), over TLS only (this machine excepted), and into no
message. A request is tried again after 429 and 5xx and when the line breaks, with growing pauses or the one that the
site asks for; a create whose answer was lost is looked for before it is sent again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from faultproxy import __version__
from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.ticket.forge import Forge, Request
from faultproxy.analyzer.ticket.render import Ticket

if TYPE_CHECKING:
    import httpx

_TRIES = 5
#: Seconds: for one request, the first pause (doubled each time), and the longest that a site may ask for.
_TIMEOUT, _PAUSE, _LONGEST = 30.0, 1.0, 120.0
_ADVICE = {401: "check the token", 403: "the token lacks the right", 404: "check the address and the token's rights"}


class _Lost(Exception):
    """A create was sent, and whether it was taken is unknown."""


def post(forge: Forge, ticket: Ticket, token: str, sleep: Callable[[float], None] = time.sleep) -> tuple[str, str]:
    """Send the ticket; return `created` or `updated`, and its address.

    Raises InputError when token or address cannot be used, or the site does not take it.
    """
    try:
        import httpx
    except ImportError as error:
        raise InputError("--send needs the extra `ticket`: pip install 'faultproxy[ticket]'") from error
    address, login = urlsplit(forge.me), forge.login(token)
    safe = address.scheme == "https"
    if not safe and address.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise InputError(f"{address.netloc}: would get the token unencrypted; give an https address")
    headers = login | {"Accept": "application/json", "User-Agent": f"faultproxy/{__version__}"}
    secrets = {token, token.rpartition(":")[2], *(value.rpartition(" ")[2] for value in login.values())} - {""}
    # A proxy that the environment names would see a token that is not encrypted.
    with httpx.Client(follow_redirects=False, timeout=_TIMEOUT, headers=headers, trust_env=safe) as client:
        site = _Site(client, sorted(secrets, key=len, reverse=True), sleep)
        for attempt in range(_TRIES):
            try:
                found = forge.find(site.ask, ticket.mark)
                answer = site.order(forge.request(ticket.title, ticket.body, found))
                return "updated" if found else "created", forge.link((found or {}) | answer)
            except _Lost:
                sleep(_pause(attempt))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = site.hidden(str(error)) or type(error).__name__
                raise InputError(f"{address.netloc}: {said}; check the address, or try again later") from error
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise InputError(f"{address.netloc}: answers otherwise than this API does; check --to and --url") from error  # fmt: skip
    raise InputError(f"{address.netloc}: no answer to {_TRIES} creates; see whether the ticket is there, and try again")


def _pause(attempt: int) -> float:
    return _PAUSE * float(1 << attempt) * random.uniform(0.5, 1.5)


@dataclass(frozen=True, slots=True)
class _Site:
    http: httpx.Client
    secrets: list[str]
    sleep: Callable[[float], None]

    def ask(self, request: Request) -> Any:
        """The JSON of an answer; None where this token may not ask."""
        answer = self._sent(request)
        return None if answer.status_code in (401, 403, 404) else self._read(request, answer)

    def order(self, request: Request) -> Any:
        """The JSON of an answer that has to come."""
        return self._read(request, self._sent(request))

    def hidden(self, text: str) -> str:
        """What a site or a library says, without the token."""
        for secret in self.secrets:
            text = text.replace(secret, "<token>")
        return text[:300]

    def _sent(self, request: Request) -> httpx.Response:
        import httpx

        for attempt in range(_TRIES):
            last, wait = attempt + 1 == _TRIES, _pause(attempt)
            try:
                answer = self.http.request(request.method, request.url, json=request.json)
            except httpx.TransportError as error:
                if request.method == "POST" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise _Lost from error
                if last:
                    raise
            else:
                asked = answer.headers.get("retry-after", "")
                # GitHub answers its secondary limits with 403 and Retry-After, as its page on rate limits says.
                if answer.status_code != 429 and answer.status_code < 500 and not (asked and answer.status_code == 403):
                    return answer
                if request.method == "POST" and answer.status_code in (500, 502, 504):
                    raise _Lost
                wait = float(asked) if asked.isdecimal() else wait
                if last or wait > _LONGEST:
                    raise InputError(f"{request.url}: HTTP {answer.status_code} in {attempt + 1} tries; try again in {wait:.0f} s")  # fmt: skip
            self.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _read(self, request: Request, answer: httpx.Response) -> Any:
        if answer.is_redirect:
            target = self.hidden(answer.headers["location"])
            raise InputError(f"{request.url}: has moved to {target}, which does not get the token; give that as --url")
        if answer.is_error:
            advice = _ADVICE.get(answer.status_code, "see its answer")
            raise InputError(f"{request.method} {request.url}: HTTP {answer.status_code} {self.hidden(answer.text)} ({advice})")  # fmt: skip
        return answer.json() if answer.content else {}
