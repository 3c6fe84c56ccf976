"""Methods of engine.py done wrong, for bugs.py: each a function of the engine and the sound method that returns the wrong one, or what makes such a function."""

import numpy as np

from engine import f32


def changed(value, at):
    """The sound method while engine.`at` is what `value` makes of it."""

    def wrong(e, sound):
        def method(*args):
            kept = getattr(e, at)
            setattr(e, at, value(e, kept))
            try:
                return sound(*args)
            finally:
                setattr(e, at, kept)

        return method

    return wrong


def after(change):
    """What the sound method returns, and then `change`d."""
    return lambda e, sound: lambda *args: change(sound(*args))


def for_part(part, of):
    """A wrong project() for one matrix; of(e, x) gives its rows."""
    return lambda e, sound: lambda x, which: of(e, sound, x) if which == part else sound(x, which)


def for_which(which, of):
    """A wrong method of (…, "q" or "k") for one of the two."""
    return lambda e, sound: lambda *args: of(e, sound, *args) if args[-1] == which else sound(*args)


def decoding(e):
    return len(e.pos) == 1 and e.pos[0] > 0


# ---- norms ----


def norm_as(formula):
    return lambda e, sound: lambda x, weight: formula(e, x, e.weight(weight)).astype(f32)


def rms(x):
    return np.sqrt(np.mean(x * x, -1, keepdims=True))


def variance_less_one(e, x, w):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + e.eps) * w


def layer_norm(e, x, w):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + e.eps) * w


def norm_in(rounded):
    def formula(e, x, w):
        x = rounded(x)
        return rounded(rounded(x * rounded(1 / np.sqrt(rounded(np.mean(x * x, -1, keepdims=True)) + e.eps))) * rounded(w))

    return formula


def one_norm(which, of):
    """A bug in attn_norm or ffn_norm alone."""
    return lambda e, sound: lambda x, w: of(e, sound, x, w) if w.endswith(f"{which}.weight") else sound(x, w)


# ---- products ----


def sums_in_f16(e, sound):
    def product(x, w):
        total = np.zeros((len(x), len(w)), np.float16)
        for k in range(x.shape[-1]):
            total = (total.astype(f32) + x[:, k : k + 1] * w[:, k]).astype(np.float16)
        return total.astype(f32)

    return product


def with_row(row, values):
    """linear() whose matrix has other values in a row."""

    def of(e, sound, x):
        name = f"blk.{e.layer}.ffn_up.weight"
        kept = e.weight(name)
        e.weights[name] = kept.copy()
        e.weights[name][row] = values(kept)
        y = sound(x, "ffn_up")
        e.weights[name] = kept
        return y

    return of


def unwritten(y, n):
    y = y.copy()
    y[..., -n:] = 0
    return y


# ---- loading ----


def file_of(part, of):
    """A wrong load() of the layers' `part`; of(e, sound, name) gives its rows."""
    return lambda e, sound: lambda name: of(e, sound, name) if name.endswith(f".{part}.weight") else sound(name)


def of_layer(layer):
    return lambda e, sound, name: sound(f"blk.{layer}.{name.split('.', 2)[2]}")


def half_zero(e, sound, name):
    rows = sound(name).copy()
    rows[len(rows) // 2 :] = 0
    return rows


def gate_for_up(e, sound):
    other = {"ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}

    def load(name):
        *layer, part, kind = name.split(".")
        return sound(".".join([*layer, other.get(part, part), kind]))

    return load


# ---- RoPE ----


def table_in(rounded):
    return after(lambda table: tuple(rounded(t) for t in table))


def frequencies_in(rounded):
    def wrong(e, sound):
        def angles(which):
            frequency = rounded((e.rope_base ** (-np.arange(0, e.head_dim, 2) / e.head_dim)).astype(f32))
            angle = e.positions(which)[:, None] * frequency.astype(float)
            return np.cos(angle).astype(f32)[:, None], np.sin(angle).astype(f32)[:, None]

        return angles

    return wrong


def half_of_the_dims(e, sound):
    def rotate(x, which):
        return np.concatenate([sound(x, which)[..., : e.head_dim // 2], x[..., e.head_dim // 2 :]], -1)

    return rotate


# ---- attention and cache ----


def exchanged(a, b):
    def change(out):
        out = out.copy()
        out[:, [a, b]] = out[:, [b, a]]
        return out

    return change


def one_head_times(head, factor):
    def change(out):
        out = out.copy()
        out[:, head] *= f32(factor)
        return out

    return change


def softmax_in(rounded):
    def wrong(e, sound):
        def softmax(s):
            x = np.exp(rounded(rounded(s) - rounded(s.max(-1, keepdims=True))))
            x = rounded(x)
            return rounded(x / rounded(x.sum(-1, keepdims=True)))

        return softmax

    return wrong


def scores_in(rounded):
    return after(rounded)


def stale(e, sound):
    """The newest row is what was there before: nothing, or the row of the call before."""

    def rows():
        kept = sound().copy()
        kept[-len(e.pos) :] = kept[-len(e.pos) - 1] if decoding(e) else 0
        return kept

    return rows


def stale_in_decode(e, sound):
    def rows():
        kept = sound().copy()
        if decoding(e):
            kept[-1] = 0
        return kept

    return rows


def one_slot_on(e, sound):
    """Rows are written one slot too far: a token finds the row before its own in its slot."""
    late = {}

    def remember(k, v):
        rows = []
        for kind, x in (("k", k), ("v", v)):
            first = late.get((kind, e.layer), np.zeros_like(x[:1]))
            rows.append(np.concatenate([first, x[:-1]]))
            late[kind, e.layer] = x[-1:].copy()
        sound(*rows)

    return remember


def cache_of_layer_before(cache):
    return lambda e, sound: lambda: getattr(e, cache)[max(e.layer - 1, 0)]


def seen_from(extra):
    def wrong(e, sound):
        return lambda n_kv: np.arange(n_kv)[None, :] <= e.pos[:, None] + extra

    return wrong


def window(n):
    return lambda e, sound: lambda n_kv: sound(n_kv) & (np.arange(n_kv)[None, :] > e.pos[:, None] - n)


def without_first_key(e, sound):
    def visible(n_kv):
        seen = sound(n_kv).copy()
        seen[1:, 0] = False
        seen[:, 0] |= e.pos == 0
        return seen

    return visible


# ---- FFN ----


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def activated(formula):
    return lambda e, sound: lambda gate, up: formula(gate, up).astype(f32)
