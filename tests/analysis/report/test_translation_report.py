"""Analysis of a run whose examples are tokens."""

import pytest
from small_runs import noisy_translation

pytest.importorskip("matplotlib", reason="reports hold figures, which require the extra `analysis`")

from test_page import Reader

from heteroscedastic.analysis.covariance import summary as covariance
from heteroscedastic.analysis.errors import disagreements, label_errors
from heteroscedastic.analysis.report import (
    build,
    covariance_section,
    entropy_section,
    hardest_section,
    label_errors_section,
    objects_section,
    saliency_section,
)
from heteroscedastic.analysis.saliency import summary as saliency

pytestmark = pytest.mark.slow

NOTE = "whose examples are tokens, which this analysis does not read; use heteroscedastic by_token."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A translator whose head has noise."""
    with pytest.MonkeyPatch.context() as patch:
        yield noisy_translation(patch, tmp_path_factory)


@pytest.mark.extended
def test_a_report_has_a_note_in_each_section_that_reads_examples(run, tmp_path, monkeypatch):
    sections = (
        label_errors_section.label_errors,
        covariance_section.class_pairs,
        saliency_section.doubts,
        objects_section.looks,
        hardest_section.hardest,
        entropy_section.entropies,
    )
    monkeypatch.setattr(build, "SECTIONS", sections)
    build.main(["--runs", str(run), "--out", str(tmp_path)])
    text = Reader((tmp_path / "index.html").read_text()).text
    assert text.count(NOTE) == len(sections)
    assert "of the test examples" in text.partition("This page reports")[0]


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        (covariance, ["--run"]),
        (label_errors, ["--checkpoint=last", "--run"]),
        (disagreements, ["--runs", "RUN"]),
        (saliency, ["--of=noise", "--runs"]),
    ],
)
def test_a_command_that_reads_examples_is_an_error_of_one_line(run, monkeypatch, module, flags):
    words = [str(run) if flag == "RUN" else flag for flag in (*flags, "RUN")]
    monkeypatch.setattr("sys.argv", ["command", *words])
    with pytest.raises(SystemExit) as caught:
        module.main()
    assert str(caught.value).startswith("error: the run is of the task 'translation'")
    assert str(caught.value).endswith(NOTE)
