"""How bench/scoring.py counts: what each verdict is, and that its gate fails where it must."""

import io
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from scoring import Case  # noqa: E402
from scoring_counts import Row, outcome, tables  # noqa: E402
from scoring_model import PROFILES  # noqa: E402
from scoring_traces import first_that_differs, nodes_of, rules_of  # noqa: E402

BUG = Case("eps-outside", 0, "sound.0", ("eps_outside_root",), "f32", None)


def test_foreign_names_have_the_maps_nodes():
    names = ["Qcur-1.MUL_MAT", "Qcur-1.RESHAPE", "Qcur-1.ROPE", "node_31.MUL_MAT", "node_7.MUL_MAT", "result_output.MUL_MAT", "norm-0.RMS_NORM"]
    assert nodes_of(names, rules_of("llama.cpp", "llama")) == {
        "Qcur-1.RESHAPE": "blk.1.attn_q",  # the first rule that gives a node wins
        "Qcur-1.ROPE": "blk.1.attn_q_rope",
        "node_7.MUL_MAT": "blk.0.attn_proj",  # by rank
        "node_31.MUL_MAT": "blk.1.attn_proj",
        "result_output.MUL_MAT": "logits",
    }


def test_a_rule_holds_for_its_architectures_alone():
    names = ["model.layers.0.post_attention_layernorm:in", "model.layers.0.mlp.act_fn", "lm_head"]
    llama, gemma2 = (nodes_of(names, rules_of("transformers", arch)) for arch in ("llama", "gemma2"))
    assert llama == {names[0]: "blk.0.ffn_inp", "lm_head": "logits"}
    assert gemma2 == {names[0]: "blk.0.attn_proj"}


class Tensors(dict):
    foreign = property(lambda self: self)

    def bits(self, node):
        import numpy as np

        return np.array(self[node])


def test_the_first_tensor_that_differs_is_the_graphs():
    sound, buggy = Tensors(a=[1], b=[2], c=[3]), Tensors(c=[0], b=[0], a=[1])
    assert first_that_differs(sound, buggy, ["a", "x", "b", "c"]) == "b"
    assert first_that_differs(sound, sound, ["a", "b", "c"]) is None


def found(status, node="", name=None, **more):
    named = {"name": name, "remaining": [{"name": name}] if name else []}
    return {"exit_status": status, "status": "", "divergence": {"node": node}, "explanation": named, **more}


VERDICTS = {
    "named": (found(1, "blk.0.attn_norm", "eps_outside_root"), ["located", "named"]),
    "unnamed": (found(1, "blk.0.attn_norm"), ["located"]),
    "another name": (found(1, "blk.0.attn_norm", "layer_norm"), ["located", "wrong name"]),
    "another place": (found(1, "blk.0.attn_q"), ["elsewhere"]),
    "noise": (found(0), ["NOISE"]),
    "incomplete": (found(3), ["cannot tell"]),
    "refused": (found(2), ["cannot tell"]),
    "weights": (found(1, "blk.0.attn_norm", weights={"holds": "all 256 rows are those of blk.3.attn_q.weight"}), ["located", "named"]),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_what_a_verdict_counts_as(name):
    verdict, counts = VERDICTS[name]
    assert outcome(BUG, verdict, "blk.0.attn_norm")[0] == counts


def row(label, **changed):
    plain = dict.fromkeys(Row._fields, "")
    return Row(**{**plain, "label": label, "profile": "all", "cls": "f32 inferred", "right": "x", **changed})


GATE = {
    "located": (row("bug", outcome="located"), 0),
    "noise": (row("bug", outcome="NOISE"), 1),
    "wrong name": (row("bug", outcome="located", named="wrong name"), 1),
    "sound": (row("sound-f32.0", right=None, status="noise"), 0),
    "false alarm": (row("sound-f32.0", right=None, status="diverged"), 1),
}


@pytest.mark.parametrize("name", GATE)
def test_the_gate_counts_what_must_not_be(name):
    one, bad = GATE[name]
    out = io.StringIO()
    assert tables([one], list(PROFILES), out) == bad
    assert f"false alarms: {int(name == 'false alarm')} of {int(one.right is None)}" in out.getvalue()
