"""The page in a real browser: quiet, offline, and used by mouse, keyboard and printer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reporter import pictured, samples
from tests.reporter.browser import Browser, installed
from trace_doctor.report import Report
from trace_doctor.reporter import html

IS_REQUIRED = "TRACE_DOCTOR_NEEDS_CHROMIUM" in os.environ
"""Set by .ci/run: there a missing browser is an error."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = installed()
    if chromium is None:
        if IS_REQUIRED:
            pytest.fail("no Chromium, which CI must have")
        pytest.skip("no Chromium on this machine: the page is not tried out")
    started = Browser(chromium, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(pictured.full(), tmp_path_factory.mktemp("page"))


def written(report: Report, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(html.render(report), encoding="utf-8")
    return path


def shown_kernels(browser: Browser) -> list[str]:
    names: list[str] = browser.run(
        "[...document.querySelectorAll('#kernel-table tbody tr:not([hidden]) th')].map(e => e.textContent)"
    )
    return names


def strip_view(browser: Browser) -> list[float]:
    """Where the strip begins, and its width."""
    box = browser.run("document.querySelector('#strip .view').getAttribute('viewBox')").split()
    return [float(box[0]), float(box[2])]


def text_of(browser: Browser, selector: str) -> str:
    words: str = browser.run(f"document.querySelector('{selector}').textContent")
    return words.replace("\u00a0", " ").strip()


@pytest.mark.parametrize("name", ["healthy", "poor", "sampled", "hostile", "largest", "empty"])
def test_it_is_quiet_and_asks_the_network_for_nothing(name: str, browser: Browser, tmp_path: Path) -> None:
    reports = {
        "healthy": samples.healthy, "poor": samples.poor, "sampled": pictured.sampled, "hostile": pictured.hostile,
        "largest": pictured.largest, "empty": Report,
    }  # fmt: skip
    page = written(reports[name](), tmp_path)
    browser.open(page)
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.run("[typeof window.pwned, document.scripts.length, document.querySelectorAll('[hidden].live').length]") == [
        "undefined", 2, 0,
    ]  # fmt: skip


def test_hostile_names_do_nothing_when_they_are_hovered_filtered_and_zoomed(browser: Browser, tmp_path: Path) -> None:
    page = written(pictured.hostile(), tmp_path)
    browser.open(page)
    browser.click("#all")
    for place in range(4):
        browser.hover(f"#kernel-{place} th")
    for place in range(8):
        browser.hover("#strip .view", x=(place + 0.5) / 8)
        browser.hover("#heat .cells", x=(place + 0.5) / 8)
    browser.click("#filter")
    browser.type("<script>")
    browser.run("document.querySelectorAll('details').forEach(part => { part.open = true })")
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.run("[typeof window.pwned, document.scripts.length, location.href]") == [
        "undefined",
        2,
        page.as_uri(),
    ]
    assert browser.run("document.querySelectorAll('img, iframe, object, link[rel=stylesheet]').length") == 0


def test_a_script_smuggled_into_the_page_is_stopped_by_the_policy(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(
        html.render(samples.healthy()).replace(
            "<main>", "<main><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
        )
    )
    browser.open(page)
    assert browser.run("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


def test_the_kernel_table_filters_and_shows_all(browser: Browser, full: Path) -> None:
    browser.open(full)
    assert shown_kernels(browser) == [
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ]
    browser.click("#filter")
    browser.type("nccl all")
    assert (shown_kernels(browser), text_of(browser, "#matches")) == (
        ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"],
        "1 of 4",
    )
    browser.run("document.querySelector('#filter').value = ''")
    browser.run(
        "(() => { const kind = document.querySelector('#kind'); kind.value = 'gemm'; kind.dispatchEvent(new Event('input')); })()"
    )
    assert shown_kernels(browser) == ["nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "gemv2T_kernel_val"]
    browser.run(
        "(() => { const kind = document.querySelector('#kind'); kind.value = ''; kind.dispatchEvent(new Event('input')); })()"
    )
    browser.click("#all")
    assert len(shown_kernels(browser)) == 4


def test_the_kernel_table_sorts_by_every_column_both_ways(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.click("#all")
    gemm, reduce, add, gemv = shown_kernels(browser)
    browser.click("#kernel-table [data-column='3']")
    assert shown_kernels(browser) == [add, gemm, reduce, gemv]
    browser.click("#kernel-table [data-column='3']")
    assert shown_kernels(browser) == [gemv, reduce, gemm, add]
    browser.click("#kernel-table [data-column='0']")
    assert shown_kernels(browser) == [gemv, reduce, gemm, add]
    assert browser.run(
        "[...document.querySelectorAll('#kernel-table [aria-sort]')].map(e => [e.textContent, e.getAttribute('aria-sort')])"
    ) == [["kernel", "ascending"]]


def test_the_strip_zooms_by_mouse_and_back(browser: Browser, full: Path) -> None:
    browser.open(full)
    assert strip_view(browser) == [0, 1_000_000]
    browser.drag("#strip .view", 0.25, 0.40)
    start, width = strip_view(browser)
    assert (start, width) == pytest.approx((250_000, 150_000), abs=2_000)
    browser.click("#strip [data-zoom='out']")
    assert strip_view(browser)[1] == pytest.approx(300_000, abs=4_000)
    browser.click("#strip [data-zoom='all']")
    assert strip_view(browser) == [0, 1_000_000]


def test_the_strip_is_read_and_zoomed_by_keyboard(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.run("document.querySelector('#strip .view').focus()")
    assert text_of(browser, "#strip .readout") == (
        "10.0 ms at 0: nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT — MFU: model FLOPs 60.0 %, compute: below the roofline 40.0 %"
    )
    browser.press("ArrowRight", times=2)
    assert text_of(browser, "#strip .readout") == (
        "14.0 ms at 16.0 ms, 40 stretches, mostly vectorized_elementwise_kernel<CUDAFunctor_add> — memory wall: elementwise 71.4 %,"
        " small kernels: device-side gap 28.6 %"
    )
    browser.press("+")
    # half of the step, around the middle of the segment at 23 ms of 40
    assert strip_view(browser) == [287_500, 500_000]
    browser.press("0")
    assert strip_view(browser) == [0, 1_000_000]


def test_the_heat_map_is_read_by_mouse_and_keyboard(browser: Browser, full: Path) -> None:
    browser.open(full)
    row = browser.run(
        "[...document.querySelectorAll('.heat tbody th')].findIndex(e => e.textContent.includes('waiting or slow'))"
    )
    browser.hover(f".heat tbody tr:nth-child({row + 1}) .cells svg", x=7.5 / 20)
    assert (
        text_of(browser, "#heat .readout") == "rank 7: communication wall: waiting or slow 3.0 points; mean of all 17.3"
    )
    browser.run("document.querySelector('#heat .cells').focus()")
    browser.press("Home")
    browser.press("ArrowDown", times=row)
    browser.press("ArrowRight", times=8)
    assert (
        text_of(browser, "#heat .readout")
        == "rank 8: communication wall: waiting or slow 18.0 points; mean of all 17.3"
    )


def test_a_number_is_explained_on_hover_and_on_focus(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.hover("#numbers b")
    assert text_of(browser, "#tip").startswith("step time: median of 3")
    browser.mouse("mouseMoved", 2, 2)
    assert browser.run("document.querySelector('#tip').hidden") is True
    browser.run("document.querySelector('.waterfall .total .n span').focus()")
    assert text_of(browser, "#tip").startswith("The whole step at the peak: 100.0 points")
    assert browser.run("document.activeElement.getAttribute('aria-describedby')") == "tip"
    browser.press("Escape")
    assert browser.run("document.querySelector('#tip').hidden") is True


def test_discs_of_the_roofline_lead_to_their_rows(browser: Browser, full: Path) -> None:
    browser.open(full)
    browser.run("document.querySelector('.roofline a').focus()")
    browser.press("ArrowRight")
    assert text_of(browser, "#tip").startswith("gemv2T_kernel_val: 1.7 % of the time")
    browser.press("Enter")
    assert "gemv2T_kernel_val" in shown_kernels(browser)


def test_dark_follows_the_system_and_the_button_overrides_it(browser: Browser, full: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.open(full, scheme="dark")
    dark = browser.run(colour)
    browser.click("#theme")
    light = browser.run(colour)
    assert (text_of(browser, "#theme"), light != dark) == ("Theme: light", True)
    browser.click("#theme")
    assert (text_of(browser, "#theme"), browser.run(colour)) == ("Theme: dark", dark)
    browser.open(full, scheme="light")
    assert browser.run(colour) == light


def test_nothing_but_tables_is_wider_than_a_telephone(browser: Browser, full: Path) -> None:
    browser.open(full, width=360)
    assert browser.run("document.documentElement.scrollWidth") == 360


def test_it_prints_light_with_everything_unfolded(browser: Browser, full: Path) -> None:
    browser.open(full, scheme="dark", media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelectorAll('details[open]').length") == 0
    assert browser.pdf().startswith(b"%PDF")


def test_without_script_all_of_it_is_there(browser: Browser, tmp_path: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(written(pictured.full(), tmp_path))
        controls = browser.call("Accessibility.getFullAXTree")["nodes"]
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    names = [node.get("name", {}).get("value", "") for node in controls if not node.get("ignored")]
    assert "gemv2T_kernel_val" in names
    assert "Show all 4" not in names
