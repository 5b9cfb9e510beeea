"""The page as text, and its figures as numbers; `test_page` opens it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from tests.reporter import pictured, samples
from trace_doctor.report import WALLS, Report, Strip
from trace_doctor.reporter import figures, html, text, verdict
from trace_doctor.reporter.view import view

REPORTS = {
    "healthy": samples.healthy,
    "poor": samples.poor,
    "busy_but_slow": samples.busy_but_slow,
    "full": pictured.full,
    "hostile": pictured.hostile,
    "sampled": pictured.sampled,
    "empty": Report,
}


class Reader(HTMLParser):
    """Tags, attributes and text; the texts of style, script and data apart."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]].append(data)
        else:
            self.words.append(data)

    def prose(self) -> str:
        return " ".join(" ".join(self.words).split())


def drawn(report: Report) -> Reader:
    return Reader(html.render(report))


@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_fetched_and_nothing_inline_can_run(name: str) -> None:
    page = drawn(REPORTS[name]())
    assert {
        key for _, key, _ in page.attributes if key.startswith("on") or key in ("style", "src", "srcset", "action")
    } == set()
    places = {value for _, key, value in page.attributes if key in ("href", "xlink:href")}
    assert {place for place in places if not (place or "").startswith(("#", "data:image/svg+xml,"))} == set()
    assert set(page.tags) & {"iframe", "object", "embed", "img", "base", "video", "audio", "math", "template"} == set()
    assert (page.tags.count("script"), page.tags.count("style")) == (2, 1)


@pytest.mark.parametrize("name", REPORTS)
def test_the_policy_admits_exactly_this_style_and_this_script(name: str) -> None:
    page = drawn(REPORTS[name]())
    policy = next(value or "" for tag, key, value in page.attributes if tag == "meta" and key == "content")
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split(";")}
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
        for source in (page.raw["style"][0], page.raw["script"][1])
    ]
    assert rules == {
        "default-src": ["'none'"], "style-src": [hashes[0]], "script-src": [hashes[1]], "img-src": ["data:"],
        "base-uri": ["'none'"], "form-action": ["'none'"],
    }  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_every_id_is_there_once_and_every_link_leads_to_one(name: str) -> None:
    page = drawn(REPORTS[name]())
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert sorted(ids) == sorted(set(ids))
    links = {(value or "")[1:] for _, key, value in page.attributes if key == "href" and (value or "").startswith("#")}
    assert links - set(ids) == set()


@pytest.mark.parametrize("name", REPORTS)
def test_there_are_fifty_kinds_of_harm_and_the_data_is_json_without_tags(name: str) -> None:
    assert len(pictured.HOSTILE_NAMES) == 50
    page = drawn(REPORTS[name]())
    assert not re.search("[<>&]", page.raw["script"][0])
    assert isinstance(json.loads(page.raw["script"][0]), dict)


def test_it_says_what_terminal_and_markdown_say_in_the_same_order() -> None:
    report = pictured.full()
    shown, prose = view(report), drawn(report).prose()
    said = [
        shown.subject,
        *verdict.headline(report).removesuffix(")").split(" (", 1),
        *verdict.sentences(report),
        shown.waterfall,
        *(bar.label for bar in shown.bars),
        *(card.title for card in shown.findings.cards),
        *(number.label for number in shown.numbers),
        *(cause.title for cause in shown.causes),
        *shown.notes,
    ]
    at = 0
    for words in said:
        at = prose.find(" ".join(words.split()), at)
        assert at >= 0, words


def test_all_walls_have_the_colours_of_the_terminal() -> None:
    style = drawn(samples.healthy()).raw["style"][0]
    assert [f".w-{wall}{{--wall:{text.WALLS[wall].colour}}}" in style for wall in WALLS] == [True] * len(WALLS)


def test_every_number_of_the_verdict_has_an_explanation() -> None:
    source = html.render(pictured.full())
    for bar in view(pictured.full()).bars:
        assert f'<span tabindex="0" title="{bar.label}' in source or bar.wall is None
    tiles = re.findall(r'<b tabindex="0" title="([^"]+)">', source)
    assert len(tiles) == len(view(pictured.full()).numbers) + len(view(pictured.full()).findings.cards)


def test_1024_gpus_and_the_worst_names_stay_below_a_megabyte() -> None:
    source = html.render(pictured.largest()).encode()
    assert len(source) < 1_000_000


def test_more_gpus_than_columns_are_drawn_as_means_and_that_is_said() -> None:
    report = pictured.full()
    many = [replace(report.gpus[0], rank=rank) for rank in range(2_050)]
    found = figures.ranks(replace(report, gpus=many))
    assert found is not None
    # 2 050 GPUs in at most 1 024 columns: 3 a column
    assert found.columns == 684
    assert found.sampled == "Sampled: 2,050 GPUs are drawn as 684 columns, each the mean of 3 neighbours."
    assert found.data["names"][1] == "rank 3 to rank 5"


def test_the_heat_map_tells_the_rank_that_differs() -> None:
    found = figures.ranks(pictured.full())
    assert found is not None
    row = next(row for row in found.rows if row.title == "communication wall: waiting or slow")
    # 18.0 on 19 ranks, 3.0 on rank 7; the largest cell of all holds 23.0
    assert (row.mean, row.lowest, row.highest) == ("17.2", "3.0 (rank 7)", "18.0 (rank 0)")
    assert {shade.opacity: shade.path for shade in row.shades} == {
        0.1: "M7 0h1v1h-1z",
        0.8: "M0 0h7v1h-7zM8 0h12v1h-12z",
    }


def test_one_gpu_needs_no_heat_map() -> None:
    assert figures.ranks(samples.healthy()) is None
    assert 'id="heat"' not in html.render(samples.healthy())


def test_the_areas_of_the_strip_are_its_layers() -> None:
    found = figures.strip(pictured.full())
    assert found is not None
    # a quarter of the step is matmul at 60 %, then 15 % all-reduce, 35 % sums (10 of 14 ms), a quarter matmul at 50 %
    assert {area.wall: area.path for area in found.areas} == {
        "small_kernels": "M0 100V0H1000000V100Z",
        "communication": "M0 100V0H400000V28.6H750000V0H1000000V100Z",
        "memory": "M0 100V0H250000V100H400000V28.6H750000V0H1000000V100Z",
        "compute": "M0 100V0H250000V100H750000V0H1000000V100Z",
        "mfu": "M0 100V40H250000V100H750000V50H1000000V100Z",
    }
    assert [area.wall for area in found.areas] == ["small_kernels", "communication", "memory", "compute", "mfu"]


def test_the_strip_says_its_step_its_sampling_and_its_longest_segments() -> None:
    found = figures.strip(pictured.full())
    assert found is not None
    assert text.plain(found.title) == "step 2, the one of median length, 40.0 ms of rank 0"
    assert text.plain(found.sampled or "") == (
        "Sampled: 43 stretches are drawn as 4 segments; neighbours shorter than 20.0 µs are merged, their areas kept."
    )
    first = found.longest[0]
    assert text.plain(" ".join((first.name, first.cause, first.start, first.time))) == (
        "vectorized_elementwise_kernel<CUDAFunctor_add> memory wall: elementwise (71 %) 16.0 ms 14.0 ms"
    )
    assert [text.plain(tick.label) for tick in found.ticks] == ["0", "10 ms", "20 ms", "30 ms", "40 ms"]


def test_an_empty_strip_is_not_drawn() -> None:
    assert figures.strip(replace(samples.healthy(), strip=Strip())) is None


def test_kernels_stand_where_their_work_puts_them_under_the_roofs() -> None:
    found = figures.roofline(pictured.full())
    assert found is not None
    # x: 1 to 1 000 FLOP/B, y: 1 to 1 000 TFLOP/s (989 and 3 TFLOP/s rounded outwards)
    assert [text.plain(tick.label) for tick in found.x_ticks] == ["1", "10", "100", "1,000"]
    assert [text.plain(tick.label) for tick in found.y_ticks] == [
        "1 TFLOP/s", "10 TFLOP/s", "100 TFLOP/s", "1,000 TFLOP/s",
    ]  # fmt: skip
    gemm, gemv = found.points
    assert (gemm.wall, gemv.wall) == ("compute", "memory")
    # log10(500) / 3 of the way; log10(450) / 3 up
    assert (gemm.x, gemm.y) == pytest.approx((89.966, 11.560), abs=0.001)
    # 3 TFLOP/s at 1 FLOP/B: at the left edge, log10(3) / 3 up
    assert (gemv.x, gemv.y) == pytest.approx((0.0, 84.096), abs=0.001)
    assert text.plain(gemm.label) == (
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT: 26.7 % of the time, 500 FLOP/B, 450 TFLOP/s, 45 % of ideal, compute"
    )


def test_the_slope_of_the_roof_is_the_bandwidth_and_meets_the_peak() -> None:
    found = figures.roofline(pictured.full())
    assert found is not None
    memory, peak, best = found.roofs
    # 3.35 TB/s x 1 FLOP/B = 3.35 TFLOP/s; 989 TFLOP/s / 3.35 TB/s = 295 FLOP/B
    assert (memory.x1, memory.y1) == pytest.approx((0.0, 100 - 17.502), abs=0.001)
    assert (memory.x2, memory.y2) == pytest.approx((82.339, 100 - 99.840), abs=0.001)
    assert (peak.x1, peak.y1, peak.x2, peak.y2) == pytest.approx((memory.x2, memory.y2, 100.0, memory.y2))
    assert [text.plain(roof.label) for roof in found.roofs] == [
        "memory 3.35 TB/s", "bf16 dense 989 TFLOP/s", "best measured matmul 800 TFLOP/s",
    ]  # fmt: skip
    assert best.kind == "best"


def test_kernels_without_counted_flops_stand_under_the_memory_roof_alone_and_the_rest_is_told_of() -> None:
    found = figures.roofline(pictured.full())
    assert found is not None
    (add,) = found.streaming
    assert (add.row, add.wall, add.x) == (2, "memory", pytest.approx(100 * 2.5 / 3.35))
    assert text.plain(add.label) == (
        "vectorized_elementwise_kernel<CUDAFunctor_add>: 15.0 % of the time, 2.50 TB/s, 75 % of ideal, memory"
    )
    assert [(tick.at, text.plain(tick.label)) for tick in found.bandwidth_ticks[::2]] == [
        (0.0, "0"), (50.0, "1.68 TB/s"), (100.0, "3.35 TB/s"),
    ]  # fmt: skip
    # the all-reduce
    assert text.plain(found.unplaced or "") == "Not drawn: kernels whose work is not known, 18.0 % of the time."


@pytest.mark.parametrize("report", [samples.healthy(), samples.poor(), Report()])
def test_without_kernels_or_peaks_there_is_no_roofline(report: Report) -> None:
    assert figures.roofline(report) is None


def test_only_findings_with_a_prediction_stand_on_the_fix_path() -> None:
    report = pictured.full()
    (gain,) = figures.gains(report.findings, report)
    assert [text.plain(words or "") for words in (gain.step, gain.mfu, gain.saved, gain.money)] == [
        "34.0 ms", "20.0 %", "5.00 ms to 7.00 ms", "1,250 a day",
    ]  # fmt: skip
    assert (gain.mfu_low, gain.mfu_high) == pytest.approx((17.3, 20.0))
    assert "Fix path" in html.render(report)
    assert "Fix path" not in html.render(samples.busy_but_slow())


def test_the_same_report_is_the_same_page() -> None:
    assert html.render(pictured.full()) == html.render(pictured.full())


def test_names_are_shown_as_they_stand() -> None:
    report = replace(samples.healthy(), kernels=replace(pictured.full().kernels))
    source = html.render(report)
    assert (
        unescape(re.findall(r'<th scope="row" title="[^"]*"><code>([^<]*)</code>', source)[2])
        == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    )
