"""check and compare return what the program says, as an object."""

import pytest
from conftest import KJV_LLAMA, TOKENS

import firstdiff as package


@pytest.fixture(scope="module")
def traces(firstdiff, tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    tokens = TOKENS[:6]
    reference = firstdiff.reference(KJV_LLAMA, tokens, folder / "ref.h5")
    common = ["run", KJV_LLAMA, "--tokens", ",".join(map(str, tokens)), "-n", "0", "-q"]
    assert firstdiff(*common, "--fault", "rope_pairing@3", "-o", folder / "bug.h5").returncode == 0
    assert firstdiff(*common, "--numerics", "emulate-f16", "-o", folder / "f16.h5").returncode == 0
    return reference, folder / "bug.h5", folder / "f16.h5"


def test_a_bug_has_a_place_and_a_name(traces, tmp_path):
    reference, bug, _ = traces
    found = package.compare(reference, bug, model=KJV_LLAMA, html=tmp_path / "page.html")
    assert (found.status, found.ok, found.node, found.bug) == ("diverged", False, "blk.3.attn_q_rope", "rope_pairing")
    assert found.summary and found.summary in str(found) and found.next.startswith("firstdiff inspect ")
    assert found.report["measures"]["nmse"]["value"] > 0.1
    assert "rope_pairing" in (tmp_path / "page.html").read_text()
    assert package.check(KJV_LLAMA, bug).bug == "rope_pairing"


def test_rounding_is_no_divergence(traces):
    reference, _, f16 = traces
    found = package.compare(reference, f16, model=KJV_LLAMA)
    assert (found.status, found.ok, found.node, found.bug) == ("noise", True, None, None)
    assert package.compare(reference, reference).status == "identical"


def test_arrays_of_an_engine_are_enough(traces, tmp_path):
    import h5py
    import numpy as np

    _, bug, _ = traces
    with h5py.File(bug) as file:
        for name, values in file["tensors"].items():
            np.save(tmp_path / f"{name}.npy", values[()])
    found = package.check(KJV_LLAMA, tmp_path, numerics="f32", tokens=TOKENS[:6])
    assert found.bug == "rope_pairing" and "with the map gguf" in found.messages


def test_what_cannot_be_used_is_an_error(traces, monkeypatch):
    with pytest.raises(package.FirstdiffError, match="no-such"):
        package.check(KJV_LLAMA, "no-such")
    monkeypatch.setenv("FIRSTDIFF", "/nowhere/firstdiff")
    with pytest.raises(package.FirstdiffError, match="/nowhere/firstdiff"):
        package.compare("a.h5", "b.h5")


def test_the_plugin_fails_a_test_with_the_verdict(traces, tmp_path, firstdiff, pytester):
    reference, bug, _ = traces
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"tokens": ' + str(TOKENS[:6]) + "}\n")
    assert firstdiff("golden", "record", KJV_LLAMA, prompts, "-o", tmp_path / "golden.h5", "-n", "0").returncode == 0
    pytester.makepyfile(
        f"""
        def test_sound(assert_matches_golden):
            assert_matches_golden({str(tmp_path / "golden.h5")!r}, {str(reference)!r})
        def test_bug(assert_matches_golden):
            assert_matches_golden({str(tmp_path / "golden.h5")!r}, {str(bug)!r})
        def test_near(assert_near_golden):
            assert_near_golden({str(KJV_LLAMA)!r}, {str(tmp_path / "golden.h5")!r}, {str(reference)!r})
        def test_far(assert_near_golden):
            assert_near_golden({str(KJV_LLAMA)!r}, {str(tmp_path / "golden.h5")!r}, {str(bug)!r}, numerics="f16")
        def test_model(assert_computes_model):
            assert_computes_model({str(KJV_LLAMA)!r}, {str(bug)!r})
        """
    )
    ran = pytester.runpytest("-p", "firstdiff.pytest_plugin", "-p", "no:cacheprovider")
    ran.assert_outcomes(passed=2, failed=3)
    ran.stdout.fnmatch_lines(["DIVERGED at blk.3.attn_q_rope", "DIVERGED    prompt 1*", "DIVERGED at blk.3.attn_q_rope: RoPE rotates*(rope_pairing)"])
