"""What the pages are made of: templates, addresses, requests. In Chromium, by the modules themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.live.console.browsing import Running, Tab, opened, sign_in
from tests.live.daemon import eventually

# The module ``name`` as the page has loaded it, and a place in the document.
BEGIN = """async () => {
  const at = document.querySelector('script[type=module]').src.replace('main.js', '')
  const [{ html, svg, each, render }, router, format, { api, ApiError, address, BASE }] = await Promise.all(
    ['core/html.js', 'core/router.js', 'core/format.js', 'core/api.js'].map(path => import(at + path)))
  const place = document.createElement('div')
  document.body.append(place)
  try { %s } finally { place.remove() }
}"""


@pytest.fixture(scope="module")
def opened_tab(chrome: Browser, running: Running) -> Iterator[Tab]:
    with opened(chrome, running) as made:
        yield made


def evaluate(tab: Tab, text: str) -> Any:
    return tab.page.evaluate(BEGIN % text)


def test_text_is_never_markup(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const hostile = '<img src=x onerror="alert(1)">&lt;'
        render(html`<p title=${hostile}>${hostile}</p>${[hostile]}`, place)
        return [place.querySelector('p').title, place.textContent, place.querySelectorAll('img').length]
        """,
    ) == [
        '<img src=x onerror="alert(1)">&lt;',
        '<img src=x onerror="alert(1)">&lt;' * 2,
        0,
    ]


def test_elements_stay_while_their_template_is_the_same(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const page = (name, busy) => html`<button ?disabled=${busy} class=${busy && 'busy'}>${name}</button>`
        render(page('one', true), place)
        const button = place.firstElementChild, before = button.outerHTML.replaceAll(/<!--.*?-->/g, '')
        render(page('two', false), place)
        return [before, button.outerHTML.replaceAll(/<!--.*?-->/g, ''), button === place.firstElementChild]
        """,
    ) == ['<button disabled="" class="busy">one</button>', "<button>two</button>", True]


def test_items_of_a_list_keep_their_elements_wherever_they_move(opened_tab: Tab) -> None:
    assert (
        evaluate(
            opened_tab,
            """
        const list = keys => html`<ul>${each(keys, key => key, key => html`<li>${key}</li>`)}</ul>`
        const shown = () => [...place.querySelectorAll('li')]
        let seed = 7
        const random = limit => (seed = seed * 1103515245 % 2147483648) % limit
        const known = new Map()
        for (let round = 0; round < 200; round++) {
          const keys = [...Array(8).keys()].filter(() => random(3)).sort(() => random(3) - 1)
          render(list(keys), place)
          const now = shown()
          const texts = now.map(each => each.textContent).join()
          if (texts !== keys.join()) return `${keys} is ${texts}`
          for (const [index, key] of keys.entries())
            if (known.get(key)?.isConnected && known.get(key) !== now[index]) return `${key} was made again`
          known.clear()
          keys.forEach((key, index) => known.set(key, now[index]))
        }
        let refused = ''
        try { render(list([1, 1]), place) } catch (fault) { refused = fault.message }
        return refused
        """,
        )
        == "two items of a list have the same key"
    )


def test_what_is_typed_gives_way_to_a_new_value_and_listeners_are_the_latest(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const heard = []
        const field = (value, name) => html`<input .value=${value} @input=${() => heard.push(name)}>`
        render(field('a', 'first'), place)
        const input = place.firstElementChild
        input.value = 'typed'
        render(field('a', 'second'), place)
        input.dispatchEvent(new Event('input'))
        return [input.value, heard]
        """,
    ) == ["a", ["second"]]


def test_content_changes_its_kind_and_leaves_nothing_behind(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const node = document.createElement('hr')
        const list = each([1], x => x, x => x)
        const kinds = [null, 'text', html`<b>b</b>`, [1, html`<i>i</i>`], node, false, 0, list, undefined]
        const seen = []
        const outer = value => html`<p>[${value}]</p>`
        for (const one of kinds) for (const other of kinds) {
          render(outer(one), place)
          render(outer(other), place)
          seen.push(place.firstElementChild.innerHTML.replaceAll(/<!--.*?-->/g, ''))
        }
        const whole = seen.every((text, index) => text === seen[index % kinds.length])
        return [...new Set(seen.slice(0, kinds.length)), whole]
        """,
    ) == ["[]", "[text]", "[<b>b</b>]", "[1<i>i</i>]", "[<hr>]", "[0]", "[1]", True]


def test_a_hole_where_none_can_be_is_an_error(opened_tab: Tab) -> None:
    assert (
        evaluate(
            opened_tab,
            """
        const refused = []
        for (const make of [
          () => html`<a class="x ${1}"></a>`, () => html`<a onclick=${1}></a>`,
          () => html`<iframe srcdoc=${1}></iframe>`,
          () => html`<p style=${1}></p>`, () => html`<textarea>${1}</textarea>`,
        ]) try { render(make(), document.createElement('div')) } catch (fault) { refused.push(fault.name) }
        return refused
        """,
        )
        == ["SyntaxError"] * 5
    )


def test_nothing_but_literal_parts_of_templates_becomes_markup(opened_tab: Tab) -> None:
    assert (
        evaluate(
            opened_tab,
            """
        const refused = []
        for (const attempt of [
          () => { place.innerHTML = '<b>b</b>' },
          () => render(html(Object.assign(['<b>b</b>'], { raw: ['<b>b</b>'] })), place),
          () => { place.insertAdjacentHTML('beforeend', '<b>b</b>') },
          () => { trustedTypes.createPolicy('other', {}) },
        ]) try { attempt() } catch (fault) { refused.push(fault.name) }
        return refused
        """,
        )
        == ["TypeError"] * 4
    )
    # Chromium says so as well, perhaps a little later.
    said = "Chromium's own words"
    eventually(lambda: opened_tab.page.evaluate("true") and len(opened_tab.faults) == 3, said)
    opened_tab.faults.clear()


def test_svg_is_in_its_namespace(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        render(html`<svg>${[1, 2].map(x => svg`<circle r=${x}></circle>`)}</svg>`, place)
        return [...place.querySelectorAll('circle')].map(each => [each.namespaceURI, each.getAttribute('r')])
        """,
    ) == [["http://www.w3.org/2000/svg", "1"], ["http://www.w3.org/2000/svg", "2"]]


def test_addresses_hold_any_name(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const names = ['a/b', '?', '#', '%', 'ü', ' ', '%2F', '..', '"']
        const { parts, query } = router.route(router.href(['x', ...names], { a: '&=', b: null, c: 0 }))
        return [parts.slice(1).join() === names.join(), [...query]]
        """,
    ) == [True, [["a", "&="], ["c", "0"]]]


def test_a_request_goes_to_the_service_alone(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const refused = []
        for (const path of ['https://example.com/', '//example.com/', '/\\\\example.com/', 'https:example.com'])
          try { refused.push(address(path).origin === BASE.origin) } catch (fault) { refused.push(fault.name) }
        return refused
        """,
    ) == ["TypeError", True, True, "TypeError"]


def test_a_name_of_dots_leads_to_no_other_endpoint(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const refused = []
        const object = key => `/storage/buckets/b/objects/${key}`
        for (const path of [
          object('../../../../admin/users/7'), object('.'), object('%2E%2e/x'), object('a\\\\..\\\\b'),
          '/dev/db/main/rest/..', object('..a/...'), '/storage/download?key=../x',
        ])
          try { refused.push(address(path).pathname) } catch (fault) { refused.push(fault.name) }
        return refused
        """,
    ) == ["TypeError"] * 5 + ["/storage/buckets/b/objects/..a/...", "/storage/download"]


def test_after_signing_out_no_token_of_a_user_is_left(chrome: Browser, running: Running) -> None:
    with opened(chrome, running) as tab:
        made: list[str] = []
        tab.page.on(
            "request", lambda request: made.append(request.url) if "/admin/tokens" in request.url else None
        )
        ask = "await api.get('/dev/db/main/rest/', { as: 'anon' }); return null"
        for _ in range(2):
            evaluate(tab, ask)
        assert len(made) == 1
        tab.page.get_by_role("button", name="Sign out").click()
        sign_in(tab)
        evaluate(tab, ask)
        assert len(made) == 2


def test_a_refusal_has_its_code_words_and_request_id(opened_tab: Tab) -> None:
    code, status, message, request_id = evaluate(
        opened_tab,
        """
        try { await api.get('/admin/users/nobody@example.com') } catch (fault) {
          return [fault.code, fault.status, fault.message, fault.requestId]
        }
        """,
    )
    assert (code, status) == ("user_not_found", 404)
    assert message
    assert request_id


def test_a_request_is_made_as_whom_it_says(opened_tab: Tab) -> None:
    running = opened_tab.running
    running.sql(
        "create function public.who() returns text language sql stable as "
        "$$ select concat_ws(' ', current_user, nullif(auth.uid()::text, '')) $$"
    )
    body = {"email": "eve@example.com", "password": "a long enough password"}
    user = running.call("POST", "/admin/users", json=body).json()["data"]["user"]["id"]
    who = "/dev/db/main/rest/rpc/who"
    eventually(lambda: running.call("GET", who).status_code == 200, "the function is known")
    asked = f"""
        const seen = []
        for (const as of ['service', 'anon', {{ id: '{user}' }}, 'service'])
          seen.push(await api.get('{who}', {{ as }}))
        return seen
        """
    assert evaluate(opened_tab, asked) == ["service_role", "anon", f"authenticated {user}", "service_role"]


def test_a_cancelled_request_is_no_failure_of_the_service(opened_tab: Tab) -> None:
    assert (
        evaluate(
            opened_tab,
            """
            try { await api.get('/admin/users', { signal: AbortSignal.abort() }) } catch (fault) { return fault.name }
            """,
        )
        == "AbortError"
    )


def test_numbers_sizes_and_times_are_for_people(opened_tab: Tab) -> None:
    assert evaluate(
        opened_tab,
        """
        const { bytes, counted, seconds, ago, cut } = format
        return [bytes(0), bytes(1023), bytes(1536), bytes(20 * 2 ** 20), counted(1, 'row'), counted(1200, 'row'),
          seconds(0.0000123), seconds(0.0123), seconds(12.34), seconds(600),
          ago(0, 3600_000), ago(0, 172800_000 * 30), cut('x'.repeat(500), 3)]
        """,
    ) == [
        *("0 B", "1,023 B", "1.5 KiB", "20 MiB", "1 row", "1,200 rows"),
        *("12 µs", "12.3 ms", "12.3 s", "10 min", "1 hour ago", "2 months ago", "xxx…"),
    ]
