"""The page of `atomc serve` in a browser: bash server/tests/page.sh starts both.

usage: python server/tests/page.py URL BROWSER SERVER PROBLEMS [FOLDER]

The server wants the key "secret", its answers end where requests say alone, and SERVER is its
process, which the last test ends. FOLDER gets pictures.
"""

import json
import os
import re
import signal
import sys
import time
import urllib.request

from playwright.sync_api import expect, sync_playwright

URL, BROWSER, SERVER = sys.argv[1], sys.argv[2], int(sys.argv[3])
PROBLEM = json.loads(open(sys.argv[4], encoding="utf-8").readline())
PICTURES = sys.argv[5] if len(sys.argv) > 5 else None
QUESTION, SOLUTION = PROBLEM["prompt"][len("Q: ") : -len("\nA:")], PROBLEM["solution"].strip()
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
REQUESTS: list[str] = []
TOLD: list[str] = []


def picture(page, name):
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png")


def gone():
    metrics = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    found = re.search(r'^atomc_requests_total\{end="gone"\} (\d+)$', metrics, re.M)
    assert found, metrics
    return int(found.group(1))


def until(true, what):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def message(page):
    return page.get_by_label("Message", exact=True).and_(page.locator("textarea"))


def say(page, text):
    message(page).fill(text)
    message(page).press("Enter")


def answer(page):
    return page.get_by_label("Answer").last


def answers(page):
    return page.get_by_label("Answer").count()


def begun(page, length):
    """Whether the last answer has so many characters already."""
    return answers(page) > 0 and len(answer(page).inner_text()) > length


def is_done(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=30_000)


def test_key(page):
    key = page.get_by_label("This server wants an API key")
    expect(key).to_be_focused()
    picture(page, "key")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#why")).to_contain_text("no valid API key")
    expect(key).to_be_focused()
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="model")).to_be_visible()
    expect(key).to_be_hidden()
    expect(message(page)).to_be_focused()
    stored = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]")
    assert stored == [["secret"], 0, ""], stored


def test_labels_and_focus(page):
    page.locator("#anew").focus()
    page.get_by_role("button", name="Settings").press("Enter")
    fields = page.locator("#settings :is(input, select, textarea)").all()
    names = [
        *("System prompt", "Temperature", "Top-p", "Top-k", "Min-p", "Max tokens", "Seed"),
        *("Thinking", "Continue the text, without the chat template"),
    ]
    assert len(fields) == len(names)
    order = ["anew", "open", *(field.get_attribute("name") for field in fields), "text", "send"]
    for field, name in zip(fields, names):
        expect(field).to_have_accessible_name(re.compile(f"^{re.escape(name)}"))
    page.locator("#anew").focus()
    found = []
    for _ in order:
        found.append(page.evaluate("document.activeElement.id || document.activeElement.name"))
        page.keyboard.press("Tab")
    assert found == order, found


def test_stream(page):
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("2000")
    page.evaluate("""() => {
        window.lengths = [];
        new MutationObserver(() => window.lengths.push(document.querySelector('article.model')?.innerText.length ?? 0))
            .observe(document.getElementById('chat'), { childList: true, subtree: true, characterData: true });
    }""")
    # A new line is one, and does not send.
    message(page).fill("first")
    message(page).press("Shift+Enter")
    assert message(page).input_value() == "first\n"
    expect(page.get_by_label("Message").and_(page.locator("article"))).to_have_count(0)
    say(page, QUESTION)
    is_done(page)
    text = answer(page).inner_text()
    assert text.lstrip().startswith(SOLUTION), text[:200]
    lengths = page.evaluate("lengths")
    # It was seen to grow in more steps than a first and a last one.
    assert len(set(lengths)) > 5 and max(lengths) > 500, lengths
    told = re.search(
        r"2000 tokens, ([\d.]+) tokens a second, prompt of \d+, cut at the most tokens", text
    )
    assert told and float(told.group(1)) > 1, text
    expect(page.get_by_role("status")).to_have_text("Answered")
    picture(page, "answer")


def test_again(page):
    before = answer(page).locator("p").first.inner_text()
    page.get_by_label("Max tokens").fill("20")
    page.get_by_role("button", name="Again").click()
    is_done(page)
    assert "20 tokens" in answer(page).inner_text()
    assert before.startswith(answer(page).locator("p").first.inner_text()[:20])
    expect(page.get_by_label("Answer")).to_have_count(1)


def test_stop(page):
    page.get_by_label("Max tokens").fill("30000")
    for stop in (
        lambda: message(page).press("Escape"),
        lambda: page.get_by_role("button", name="Stop").click(),
    ):
        count = gone()
        page.get_by_role("button", name="New chat").click()
        say(page, QUESTION)
        until(lambda: begun(page, 100), "no answer began")
        # Answers shorter than 50 ms show no speed.
        page.wait_for_timeout(100)
        stop()
        is_done(page)
        expect(page.get_by_role("status")).to_have_text("Stopped")
        expect(message(page)).to_be_focused()
        text = answer(page).inner_text()
        assert re.search(r"about \d+ tokens, [\d.]+ tokens a second, stopped", text), text
        # The server has been told.
        until(
            lambda count=count: gone() == count + 1,
            "the server did not see that the client went away",
        )
        page.wait_for_timeout(200)
        assert answer(page).inner_text() == text
    # A new conversation ends what is under way, and has nothing of it.
    say(page, QUESTION)
    until(lambda: answers(page) > 1, "no second answer began")
    page.get_by_role("button", name="New chat").click()
    is_done(page)
    expect(page.locator("article")).to_have_count(0)
    assert page.evaluate("turns") == []
    page.get_by_label("Max tokens").fill("20")


def test_thoughts(page):
    page.get_by_label("Thinking").select_option("on")
    say(page, QUESTION)
    is_done(page)
    expect(answer(page).locator("details")).to_contain_text("Thoughts")
    assert len(answer(page).locator("details").inner_text()) > 20
    page.get_by_label("Thinking").select_option("as the model has it")


def test_plain(page):
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Continue the text").check()
    say(page, PROBLEM["prompt"])
    is_done(page)
    assert answer(page).locator("p").first.inner_text().strip()[:10] == SOLUTION[:10]
    page.get_by_label("Continue the text").uncheck()


def test_settings_are_sent(page):
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("System prompt").fill("short")
    page.get_by_label("Top-p").fill("0.5")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, QUESTION)
    is_done(page)
    body = asked.value.post_data_json
    said = [{"role": "system", "content": "short"}, {"role": "user", "content": QUESTION}]
    options = {"include_usage": True}
    assert body == {
        "model": "model",
        "messages": said,
        "stream": True,
        "stream_options": options,
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 20,
    }
    # A number that is none is shown, with the settings closed too.
    page.get_by_label("Top-p").fill("2")
    page.get_by_role("button", name="Settings").click()
    say(page, "more")
    expect(page.get_by_label("Top-p")).to_be_focused()
    expect(message(page)).to_have_value("more")
    page.get_by_label("Top-p").fill("")
    page.get_by_label("System prompt").fill("")
    page.reload()
    expect(page.get_by_role("heading", name="model")).to_be_visible()
    if page.locator("#settings").is_hidden():
        page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Max tokens")).to_have_value("20")


def answering(page, status, body):
    """Has something between the page and the server answer chats."""
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, body=body))


def test_server_refuses(page):
    """A fault is shown with the server's words, and the message can be sent once more."""
    say(page, "refuse this")
    fault = page.get_by_role("alert").and_(page.locator("article"))
    expect(fault).to_contain_text("The server answers 400")
    expect(fault).to_contain_text("this turn is refused")
    expect(message(page)).to_have_value("refuse this")
    is_done(page)
    assert page.evaluate("turns") == []
    picture(page, "refused")
    # The key is no longer one.
    page.evaluate("sessionStorage.setItem('atomc.key', 'old')")
    say(page, QUESTION)
    expect(fault).to_contain_text("The server answers 401: no valid API key")
    page.get_by_label("This server wants an API key").fill("secret")
    page.keyboard.press("Enter")
    expect(message(page)).to_be_focused()
    page.keyboard.press("Enter")
    is_done(page)
    expect(fault).to_have_count(0)
    assert SOLUTION[:10] in answer(page).inner_text()


def test_server_fails(page):
    """A status of 500, a fault within a stream, and a stream that breaks off."""
    page.get_by_role("button", name="New chat").click()
    error = json.dumps({"error": {"message": "the device is <b>lost</b>", "type": "server_error"}})
    piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "begun"}}]})
    fault = page.get_by_role("alert").and_(page.locator("article"))
    for status, body, shown, count in [
        (500, error, "The server answers 500: the device is <b>lost</b>", 0),
        (502, "a proxy's words", "The server answers 502: a proxy's words", 0),
        (
            200,
            f"data: {piece}\n\ndata: {error}\n\ndata: [DONE]\n\n",
            "ended the answer: the device is <b>",
            1,
        ),
        (200, f"data: {piece}\n\n", "The answer broke off.", 2),
    ]:
        answering(page, status, body)
        say(page, "again")
        expect(fault).to_have_count(1)
        expect(fault).to_contain_text(shown)
        is_done(page)
        expect(page.get_by_label("Answer")).to_have_count(count)
        page.unroute("**/v1/chat/completions")
        message(page).fill("")
    assert page.locator("#chat b").count() == 0


def test_texts_are_texts(page):
    """Neither a model's text nor a user's becomes HTML; code and strong words are shown as such."""
    page.get_by_role("button", name="New chat").click()
    text = f"# A title\n\n{HOSTILE} and **strong** `x < y`\n\n```html\n{HOSTILE}\n\nmore\n```\nend [a](javascript:alert(1))"
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    chunks = [{"choices": [{"index": 0, "delta": {"reasoning_content": HOSTILE}}]}]
    chunks += [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answering(page, 200, body)
    say(page, HOSTILE)
    is_done(page)
    page.unroute("**/v1/chat/completions")
    assert page.locator("article.user").inner_text() == HOSTILE
    assert answer(page).locator("details p").inner_text() == HOSTILE
    assert answer(page).locator("pre").inner_text() == f"{HOSTILE}\n\nmore"
    paragraphs = answer(page).locator("> div > p").all_inner_texts()
    assert paragraphs == [
        "A title",
        f"{HOSTILE} and strong x < y",
        "end [a](javascript:alert(1))",
    ], paragraphs
    assert answer(page).locator("strong").all_inner_texts() == ["A title", "strong"]
    assert page.locator("#chat :is(img, script, a, iframe)").count() == 0
    assert page.title() == "model"
    picture(page, "texts")


def test_policy(page):
    """What a text must not do has no effect even where it is made HTML."""
    told = len(TOLD)
    page.evaluate(
        """html => {
            const place = document.body.appendChild(document.createElement('div'));
            place.innerHTML = html;
            place.append(Object.assign(document.createElement('script'), { textContent: "document.title = 'owned'" }));
        }""",
        HOSTILE,
    )
    asked = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'asked', error => error.name)")
    page.wait_for_timeout(200)
    assert (asked, page.title()) == ("TypeError", "model")
    assert sum("Content Security Policy" in line for line in TOLD[told:]) >= 2, TOLD[told:]
    del TOLD[told:]
    page.reload()


def light(color):
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def test_colours(page):
    say(page, "refuse this")
    is_done(page)
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        color = lambda selector, what: page.evaluate(
            "([selector, what]) => getComputedStyle(document.querySelector(selector))[what]",
            [selector, what],
        )
        ground = light(color("body", "backgroundColor"))
        grounds.append(ground)
        pairs = [
            (light(color(place, "color")), ground)
            for place in ("body", ".told", "#text", "article.bad")
        ]
        pairs.append((light(color("#send", "color")), light(color("#send", "backgroundColor"))))
        for pair in pairs:
            high, low = max(pair), min(pair)
            # The contrast that WCAG wants of texts.
            assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, pairs)
        picture(page, scheme)
    assert grounds[0] > 0.8 and grounds[1] < 0.05, grounds
    page.emulate_media(color_scheme="light")


def test_sizes(page):
    for width, height in ((320, 560), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.reload()
        expect(page.get_by_role("heading", name="model")).to_be_visible()
        say(page, QUESTION + " " + "x" * 300)
        is_done(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in ("#send", "#text", "#open"):
            box = page.locator(place).bounding_box()
            assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, (place, box)
            assert box["y"] + box["height"] <= height, (place, box)
        picture(page, f"width-{width}")


def test_no_server(page):
    os.kill(SERVER, signal.SIGTERM)
    until(lambda: not is_up(), "the server did not end")
    say(page, QUESTION)
    fault = page.get_by_role("alert").and_(page.locator("article"))
    expect(fault).to_contain_text("The server cannot be reached")
    expect(message(page)).to_have_value(QUESTION)


def is_up():
    try:
        return urllib.request.urlopen(f"{URL}/health").status == 200
    except OSError:
        return False


def main():
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 700})
        page.set_default_timeout(20_000)
        page.on("request", lambda request: REQUESTS.append(request.url))
        page.on("pageerror", lambda error: TOLD.append(f"error: {error}"))
        page.on("console", lambda line: TOLD.append(line.text))
        response = page.goto(f"{URL}/")
        assert response and response.status == 200
        for name, test in tests:
            start = time.monotonic()
            test(page)
            print(f"{name}: {time.monotonic() - start:.1f} s")
        browser.close()
    others = [url for url in REQUESTS if not url.startswith((f"{URL}/", "data:"))]
    assert len(REQUESTS) > 10 and others == [], others
    # Chromium tells of each answer that is no success.
    faults = [line for line in TOLD if not line.startswith("Failed to load resource")]
    assert faults == [], faults
    print(f"{len(tests)} passed, 0 failed")


main()
