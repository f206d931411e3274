"""The page in a real Chromium: keys and clicks, several people, an order that learns, classes that are added, kills."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.browsers import needs_browser, new_page
from tests.review.browser import (
    all_data,
    go,
    misplaced,
    new_tab,
    opened,
    opened_without_waiting,
    states,
    wait_for,
    wait_until_sent,
)
from tests.review.http_client import TOKENS, ReviewClient, run_server, running
from tests.review.samples import COPY, is_bright, suggest_wrong
from tests.waiting import wait_until

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.database import FILE
from labelgap.review.queues import class_feed
from labelgap.review.store import SECOND, DecisionStore

pytestmark = needs_browser
KEYS = "ynyynuyynnyyyynnyuyn"
MEANS = {"y": "1", "n": "0", "u": "-1"}


def test_twenty_by_keyboard_survive_undo_reload_and_a_killed_server(chromium: Any, folder: Path) -> None:
    expected = [MEANS[key] for key in KEYS]
    with running(folder, "--budget", "15m", "--fixed-order") as command:
        page = opened(chromium, f"{command.address}/class/3")
        names = all_data(page, "name")[:20]
        for key in KEYS:
            page.keyboard.press(key)
        assert states(page, 20) == expected, "the page answers before the server does"
        page.keyboard.press("z")
        expected[19] = ""
        assert states(page, 20) == expected
        wait_until_sent(page)
        go(page, page.url)
        assert states(page, 20) == [""] * 20 and "of" in page.inner_text("#counters")
        names[19] = page.get_attribute(".entry", "data-name")
        command.process.kill()
        command.process.join()

        page.keyboard.press("n")
        page.wait_for_selector("#banner:not([hidden])")
        assert "does not answer" in page.inner_text("#banner") and "1 answer waits" in page.inner_text("#banner")
        expected[19] = "0"
        port = str(command.client.port)
    with running(folder, "--fixed-order", port=port) as command:
        wait_until(lambda: "restarted" in page.inner_text("#banner"))  # the link has another token now
        go(new_tab(page), command.address)
        page.wait_for_selector("#banner[hidden]", state="attached")
        wait_until_sent(page)
        go(page, f"{command.address}/class/3?show=decided")
        shown = zip(all_data(page, "name"), all_data(page, "value"), strict=True)
        assert dict(shown) == dict(zip(names, expected, strict=True)) and all_data(page, "name")[0] == names[19]
        assert page.errors == []
    assert len(decisions(folder)) == 20
    assert command.process.exitcode == 0 and "missing labels found" in command.farewell

    assert apply_decisions(open_review_folder(folder), folder.parent / "better.csv").decided == 20


def test_two_people_at_once_are_told_of_conflicts(chromium: Any, review: Review, folder: Path) -> None:
    with run_server(review, reviewer="anna") as client:
        address = f"{client.address}class/3"
        anna, ben = opened(chromium, address), opened(chromium, f"{address}?show=held")
        ben.fill("#reviewer", "ben")
        ben.keyboard.press("Enter")
        ben.locator(".entry").nth(5).click()
        assert states(ben, 6)[5] == "1"
        anna.wait_for_selector(".entry:nth-child(6)[data-value='1'].others")
        assert anna.locator(".entry").nth(5).get_attribute("data-who") == "ben"
        wait_for(anna, "document.getElementById('others').textContent === 'also here: ben'")

        ben.route("**/api/changes*", lambda route: None)  # no poll brings him her answer
        with ben.expect_request("**/api/changes*"):
            pass
        anna.keyboard.press("y")
        wait_until_sent(anna)
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        ben.wait_for_selector(".entry:nth-child(1).conflict")
        assert "anna answered yes" in ben.inner_text("#toast") and states(ben, 1) == ["1"]
        assert [made.author for made in decisions(folder) if made.value == PRESENT] == ["ben", "anna"]
        ben.keyboard.press("Home")
        ben.keyboard.press("n")
        anna.wait_for_selector(".entry:nth-child(1)[data-value='0']")
        made = {(each.author, each.value) for each in decisions(folder)}
        assert made == {("ben", PRESENT), ("ben", ABSENT)}
        assert anna.errors == ben.errors == []


def test_clicks_the_rest_and_the_large_picture(
    chromium: Any, review: Review, client: ReviewClient, folder: Path
) -> None:
    page = opened(chromium, f"{client.address}class/3", "tablet")
    total = page.locator(".entry").count()
    page.locator(".entry").nth(1).click()
    page.locator(".entry").nth(2).click()
    page.locator(".entry").nth(2).click()  # once more takes it back
    page.locator(".entry").nth(4).locator("[data-answer='-1']").click()
    assert states(page, 5) == ["", "1", "", "", "-1"]

    page.locator(".entry").nth(0).locator(".enlarge").click()
    page.wait_for_selector("#viewer[open] #detail h2")
    page.keyboard.press("h")
    wait_for(page, "document.getElementById('heat').naturalWidth > 0")
    page.keyboard.press("y")
    assert states(page, 1) == ["1"] and page.locator("#viewer[open]").count() == 1
    page.click("#viewer [data-answer='0']")
    assert states(page, 3) == ["1", "1", "0"], "the one that is answered is stepped over"
    page.keyboard.press("Space")
    assert page.locator("#viewer[open]").count() == 0 and states(page, 3) == ["1", "1", "0"]
    page.keyboard.press("z")
    assert states(page, 3) == ["1", "1", ""]

    page.click("#rest")
    assert "" not in states(page, total) and states(page, 5) == ["1", "1", "0", "0", "-1"]
    wait_until_sent(page)
    assert len(decisions(folder)) == total
    page.click("#undo")
    wait_until_sent(page)
    assert len(decisions(folder)) == 3 and states(page, 5) == ["1", "1", "", "", "-1"]
    assert page.errors == []


def test_a_long_page_loads_only_what_is_visible_and_answers_before_the_server(chromium: Any, tmp_path: Path) -> None:
    data = lg.load("digits", train=1000, val=0, test=0)
    review = Review(create_random_review(data, "train", 1000, 0, tmp_path / "review"))
    with run_server(review) as client:
        page = new_page(chromium)
        loaded: list[str] = []
        page.on("request", lambda request: loaded.append(request.url) if "/thumbnail/" in request.url else None)
        go(page, f"{client.address}class/3?size=2000")
        wait_for(page, "document.querySelector('.entry img').naturalWidth > 0")
        count = page.locator(".entry").count()
        wait_until(lambda: page.locator(".entry").count() == count and len(loaded) > 10)
        assert count > 800 and len(loaded) < 400
        page.evaluate(
            """() => { for (let at = 0; at < 100; at++)
              document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true })); }"""
        )
        assert states(page, 101) == ["0"] * 100 + [""]
        page.keyboard.press("r")
        assert "" not in states(page, count)
        wait_until_sent(page)
        page.keyboard.press("End")
        wait_for(page, "document.activeElement.querySelector('img').naturalWidth > 0")
    assert len(decisions(review.path)) == count
    review.close()


def test_one_key_too_many_changes_no_answer(chromium: Any, review: Review, client: ReviewClient, folder: Path) -> None:
    image = int(review.image_order[0])
    count = len(review.of_image(image))
    page = opened(chromium, client.address)
    page.click("text=One image at a time")
    page.wait_for_url(f"**/image/{int(review.candidates.columns.image_ids[image]):016x}")
    page.wait_for_selector("html[data-ready]")
    for _ in range(count):
        page.keyboard.press("n")
    page.keyboard.press("y")
    assert states(page, count) == ["0"] * count and page.locator(".entry.current").count() == 0
    assert page.inner_text("#toast") == "Nothing changed: the last one here is answered. Enter: Next image →"
    wait_until_sent(page)
    assert len(decisions(folder)) == count
    page.keyboard.press("ArrowUp")
    page.keyboard.press("y")
    assert states(page, count)[-1] == "1", "who goes back can still change it"
    page.keyboard.press("z")
    assert states(page, count)[-1] == "0"
    page.keyboard.press("n")  # the same answer again is no change
    first = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: "/image/" in url and url != first)
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("r")
    assert page.evaluate("document.activeElement.rel") == "next"
    second = page.url
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/image/" in url and url != second)
    assert page.errors == []


def kinds(folder: Path) -> list[tuple[str, int | None]]:
    with closing(DecisionStore(folder / FILE, read_only=True)) as store:
        return [(event.kind, event.value) for event in store.current()]


def test_labels_are_confirmed_and_corrected_by_keys_and_clicks(chromium: Any, folder: Path) -> None:
    suggest_wrong(folder, 40)
    review = Review(open_review_folder(folder))
    with run_server(review) as client:
        page = opened(chromium, client.address)
        page.click("text=Confirm or correct 40")
        page.wait_for_selector("html[data-ready]")
        assert all_data(page, "observed") == ["1"] * 40, "one present of each image is known"
        for key in "ynu":
            page.keyboard.press(key)
        assert states(page, 4) == ["1", "0", "-1", ""]
        page.locator(".entry").nth(3).click()
        assert states(page, 4)[3] == "0", "a click says that the label is wrong"
        page.locator(".entry").nth(3).click()
        assert states(page, 4)[3] == "", "another one takes it back"
        page.locator(".entry").nth(4).locator("[data-answer='wrong']").click()
        page.locator(".entry").nth(3).locator(".enlarge").click()
        page.wait_for_selector("#viewer[open] #detail h2")
        page.click("#viewer [data-answer='right']")
        page.keyboard.press("ArrowLeft")  # back to the one that was stepped over
        page.keyboard.press("n")
        page.keyboard.press("Escape")
        assert states(page, 6) == ["1", "0", "-1", "1", "0", ""]
        for _ in range(2):
            page.keyboard.press("z")
        wait_until_sent(page)
        assert states(page, 6) == ["1", "0", "-1", "", "", ""], "the second no was no new answer"
        wait_for(page, "document.getElementById('panel').textContent.includes('3 answered, 1 wrong. About')")
        assert {kind for kind, _ in kinds(folder)} == {"wrong"}
        page.keyboard.press("r")
        wait_until_sent(page)
        assert "" not in states(page, 40)
        page.keyboard.press("]")
        page.wait_for_selector("h1:has-text('Which labels are missing?')")
        assert page.locator("text=Confirm or correct").count() == 0 and page.errors == []
    assert len(kinds(folder)) == 40
    review.close()


def test_an_aim_is_remembered_and_its_feed_is_answered_by_the_keyboard(chromium: Any, folder: Path) -> None:
    with closing(Review(open_review_folder(folder))) as review, run_server(review) as client:
        review.start_ranking()
        page = opened(chromium, client.address)
        page.wait_for_selector("#plan ol")
        page.click("a.aim[data-aim='classifier']")
        page.wait_for_url("**/?aim=classifier")
        page.goto(client.address)
        page.wait_for_url("**/?aim=classifier")
        page.wait_for_selector("html[data-ready]")
        page.click("text=Start with what the model is least sure of")
        page.wait_for_selector("h1:has-text('Does each image show')")
        page.wait_for_selector("html[data-ready]")
        captions = page.eval_on_selector_all(".caption", "list => list.map((each) => each.textContent)")
        names = [f"{name}?" for name in all_data(page, "className")]
        assert captions == names and len(set(captions[:10])) > 1, "each says its class"
        for key in "ynyynnyynyny":
            page.keyboard.press(key)
        wait_until_sent(page)
        wait_for(page, "!document.getElementById('update').hidden")
        assert [f"{name}?" for name in all_data(page, "className")] == names, "what is on the page stays where it is"
        follow(page, "g")
        assert states(page, 1) == [""] and [kind for kind, _ in kinds(folder)] == ["classifier"] * 12

        page.click(".aims [data-aim='random']")
        page.wait_for_selector("p:has-text('Drawn at random')")
        page.wait_for_selector("html[data-ready]")
        for key in "nny":
            page.keyboard.press(key)
        wait_until_sent(page)
        assert [kind for kind, _ in kinds(folder)][12:] == ["random"] * 3
        page.goto(client.address)
        page.wait_for_url("**/?aim=random")
        page.wait_for_selector("html[data-ready]")
        brought = page.locator(".aim small").all_inner_texts()
        assert brought[1] == "12 answers for the classifier, 7 found" and brought[2].startswith("3 random answers")
        page.click("tbody th a >> nth=0")
        page.wait_for_url("**/ask/random?class=*")
        assert page.errors == []


def test_more_leaves_out_what_was_left_open_here_and_nothing_else(chromium: Any, review: Review) -> None:
    with run_server(review) as client:
        page = opened(chromium, client.address)
        page.fill("#new-class", "person")
        follow(page, "#add-class")
        assert "person" in page.inner_text("h1")
        go(page, f"{page.url}?size=20")
        first = all_data(page, "id")
        follow(page, "]")
        second = all_data(page, "id")
        assert not set(first) & set(second) and len(second) == 20
        for key in "yyyn":
            page.keyboard.press(key)
        wait_until_sent(page)
        follow(page, "]")
        third = all_data(page, "id")
        assert not set(third) & {*first, *second}
        page.click("#rest")
        wait_until_sent(page)
        follow(page, "]")
        assert not set(all_data(page, "id")) & {*first, *second, *third}
        following, asked = review.added.extend(review.candidates), [*first, *second, *third, *all_data(page, "id")]
        order = [
            following.id(number) for number in class_feed(review, following.classes.index("person")).numbers.tolist()
        ]
        assert {*first, *second[4:]} <= {*order} and len(asked) == 80
        while page.locator("#more").count():
            follow(page, "]")
            asked += all_data(page, "id")
        assert {*order} <= {*asked} and len(asked) == len({*asked}), "each is shown once"
        assert page.errors == []


def test_a_link_from_elsewhere_opens_the_review_and_one_without_token_says_what_to_do(
    chromium: Any, review: Review, tmp_path: Path
) -> None:
    with run_server(review) as client:
        TOKENS.pop(client.port)  # a browser that was never here
        page = opened_without_waiting(chromium, client.address)
        assert "token=" in page.inner_text("body") and page.locator("img, script").count() == 0
        start = tmp_path / "start.html"
        start.write_text(f'<a href="{client.address}class/3?token={client.token}">open</a>')
        page.goto(start.as_uri())
        page.click("a")
        page.wait_for_selector("html[data-ready]")
        assert page.url == f"{client.address}class/3" and page.evaluate("document.cookie") == ""
        wait_for(page, "document.querySelector('.entry img').naturalWidth > 0")
        page.keyboard.press("y")
        wait_until_sent(page)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.errors == [] and len(review.store.current()) == 1


RELEASE = """() => fetch("/api/leases", { method: "POST", headers: { "Content-Type": "application/json",
  "X-CSRF-Token": document.body.dataset.csrfToken }, body: JSON.stringify({ store: document.body.dataset.store,
  lease: document.body.dataset.lease, reviewer: "anna", class_number: 3, ids: [] }) })"""


def change_token(page: Any) -> None:
    """Have the server refuse the CSRF token of the page, and give it another one when asked."""
    own = page.get_attribute("body", "data-csrf-token")

    def answer(route: Any) -> None:
        headers = route.request.headers
        if headers["x-csrf-token"] == own:
            route.fulfill(status=403, json={"problem": "csrf", "detail": ""})
        else:
            route.continue_(headers={**headers, "x-csrf-token": own})

    page.route("**/api/session", lambda route: route.fulfill(json={"csrf_token": "another"}))
    page.route(re.compile("/api/(leases|decisions)"), answer)


def test_a_page_whose_lease_is_lost_takes_it_again_and_marks_what_another_has(chromium: Any, review: Review) -> None:
    with run_server(review, reviewer="anna") as client:
        anna = opened(chromium, f"{client.address}class/3?size=12")
        anna.evaluate(RELEASE)
        change_token(anna)  # as after a restart of the server
        ben = client.another("ben")
        ben.enter()
        page = ben.request("/class/3?size=4").text
        anna.wait_for_selector(".entry.held")
        assert anna.locator(".entry.held").count() == 4
        assert all(identity in page for identity in all_data(anna, "id")[:4])
        anna.click("#rest")
        assert states(anna, 12) == [""] * 4 + ["0"] * 8, "the rest is what nobody else looks at"
        wait_until_sent(anna)
        assert anna.errors == []


def test_a_second_opinion_is_blind_and_a_disagreement_is_settled(chromium: Any, review: Review, folder: Path) -> None:
    with run_server(review, reviewer="anna", double=1.0) as client:
        address = f"{client.address}class/3?size=12"
        anna = opened(chromium, address)
        for _ in range(12):
            anna.keyboard.press("y")
        wait_until_sent(anna)
        assert SECOND not in all_data(go(anna, address), "asked"), "nobody is asked twice"
        anna.goto(client.address)
        ben = opened(chromium, client.address)
        ben.fill("#reviewer", "ben")
        ben.keyboard.press("Enter")
        ben.goto(address)
        ben.keyboard.press("n")  # an answer tells the server the name
        wait_until_sent(ben)
        go(ben, address)
        second = ben.locator(f".entry[data-asked={SECOND}]").first
        assert second.get_attribute("data-value") == second.get_attribute("data-who") == ""
        assert second.get_attribute("data-version") == "0"
        second.locator("[data-answer='0']").click()
        wait_until_sent(ben)
        assert [made.accepted for made in review.store.events() if made.kind == SECOND] == [False]
        ben.wait_for_selector("#panel a[href='/settle']")  # after a poll
        assert second.get_attribute("data-value") == "0" and second.get_attribute("data-who") == "ben"
        identity = second.get_attribute("data-id")
        ben.click("#panel a[href='/settle']")
        ben.wait_for_selector("body.settle")
        assert all_data(ben, "id") == [identity]
        assert [text.strip() for text in ben.locator(".opinions span").all_inner_texts()] == ["anna: yes", "ben: no"]
        ben.keyboard.press("r")
        assert states(ben, 1) == [""], "there is no rest to answer at once"
        ben.keyboard.press("y")
        wait_until_sent(ben)
        ben.keyboard.press("z")
        wait_until_sent(ben)
        for _ in range(2):
            with ben.expect_response(lambda response: "/api/changes" in response.url):
                pass  # a poll brings the answer that is in force again
        assert states(ben, 1) == [""], "what is undone is to be settled again"
        ben.keyboard.press("n")
        wait_until_sent(ben)
        ben.reload()
        assert "nothing to settle" in ben.inner_text("main") and anna.errors == ben.errors == []
    assert [made.author for made in decisions(folder) if made.value == ABSENT].count("ben") == 2


def test_every_button_is_in_the_window_and_none_covers_another(chromium: Any, folder: Path) -> None:
    suggest_wrong(folder, 20)
    with closing(Review(open_review_folder(folder))) as review, run_server(review, double=1.0) as client:
        identity = f"{int(review.candidates.columns.ids[review.listed(3)[0]]):016x}"
        client.decide(identity, 1)
        client.another("ben").decide(identity, 0, asked=SECOND)
        page = opened(chromium, client.address)
        page.wait_for_selector("#plan ol")
        assert misplaced(page, "main", ".new-class") == []
        image = f"image/{int(review.candidates.columns.image_ids[review.image_order[0]]):016x}"
        for path in ("wrong", "ask/classifier", "ask/random?class=3", image, "settle", "class/3"):
            go(page, client.address + path)
            assert misplaced(page, ".actions", ".entry") == [], path
        page.keyboard.press("Space")
        page.wait_for_selector("#viewer[open] #detail h2")
        assert misplaced(page, "#viewer") == []
        page.click("#viewer [data-answer='-1']")
        assert states(page, 1) == ["-1"]
        go(page, client.address).fill("#new-class", "bright")
        follow(page, "#add-class")
        assert misplaced(page, ".actions", ".entry") == []
        assert page.evaluate("document.querySelector('.bar').offsetHeight") <= 90, "the head stays small"
        assert page.errors == []


def follow(page: Any, what: str) -> None:
    """Press a key, or click what a selector says, and wait for the page that follows."""
    with page.expect_navigation():
        page.click(what) if what.startswith("#") else page.keyboard.press(what)
    page.wait_for_selector("html[data-ready]")


def test_a_class_is_added_its_examples_found_by_similarity_and_a_ranking_comes(chromium: Any, album_run: Path) -> None:
    with closing(Review(open_review_folder(album_run))) as review, run_server(review) as client:
        review.start_ranking()
        page = opened(chromium, client.address)
        page.fill("#new-class", "Round")
        page.click("#add-class")
        wait_for(page, "!document.getElementById('new-class-problem').hidden")
        assert "a class 'round' already" in page.inner_text("#new-class-problem")
        page.fill("#new-class", "bright")
        follow(page, "Enter")
        assert "bright" in page.inner_text("h1")
        shown = all_data(page, "name")
        at = next(number for number, name in enumerate(shown) if is_bright(name))
        for _ in range(at):
            page.keyboard.press("ArrowRight")
        follow(page, "s")
        wait_until(lambda: "being computed" not in go(page, page.url).inner_text("main"))
        similar = all_data(page, "name")
        assert similar[0] == shown[at] and sum(map(is_bright, similar[:6])) >= 5
        copied = {COPY, "00.png"}  # an answer on one of them would be two decisions
        marked = [name for name in similar if is_bright(name) and name not in copied][:6]
        for name in marked:
            page.click(f'.entry[data-name="{name}"] [data-answer="1"]')
        wait_until_sent(page)
        wait_for(page, "document.getElementById('counters').textContent.includes('6 examples')")
        wait_for(page, "document.getElementById('update').textContent.includes('after 6 decisions')")
        follow(page, "g")
        assert "near=" not in page.url and "bright" in page.inner_text("h1")
        order = all_data(page, "name")
        left = sum(map(is_bright, order))
        assert left >= 5 and sum(map(is_bright, order[: left + 2])) >= 0.7 * left, "random order would hold a fourth"
        assert page.errors == []
