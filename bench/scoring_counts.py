"""How bench/scoring.py counts verdicts: what each is, a row for each, and the tables of them."""

import collections
import json
import shlex

OUTCOMES = ["located", "NOISE", "cannot tell", "elsewhere", "named", "wrong name"]


def is_right(names, explanation, right):
    """Is one of the names right, and does the explanation say the words that go with it?"""
    said = json.dumps(explanation, ensure_ascii=False)
    return any(name in names and words in said for name, _, words in (r.partition(":") for r in right))


def outcome(case, found, expected):
    """The columns that count, the blamed tensor and the names."""
    at = (found.get("divergence") or {}).get("node", "") if found["exit_status"] == 1 else ""
    explanation, weights = found.get("explanation") or {}, found.get("weights") or {}
    names = [row["name"] for row in explanation["remaining"]] if explanation.get("name") else []
    names += [weights["name"]] if weights.get("name") else []
    told = {0: "NOISE", 2: "cannot tell", 3: "cannot tell"}.get(found["exit_status"], "located" if at == expected else "elsewhere")
    counts = [told]
    if names:
        counts.append("named" if is_right(names, explanation, case.names) else "wrong name")
    elif "those of" in weights.get("holds", ""):
        counts.append("named")
        names = [weights["holds"]]
    return counts, at, names


Row = collections.namedtuple("Row", "model label profile effect outcome named expected at status cls names right more reason command")


def judge(model, case, profile, given):
    command, found = model.command(case, profile, given), model.verdict(case, profile, given)
    replay = found.get("replay") or {}
    cls = f"{replay.get('class')} {replay.get('class_source')}"
    first, moved = model.measure(case) if case.sound else (None, 0)
    expected = model.expected(first, case.label, profile) if first else None
    counts, at, names = outcome(case, found, expected)
    more = [f"{c['node']} {c['name'] or '?'}" for c in (found.get("causes") or [])[1:]]
    reasons = [*(found.get("reasons") or []), (found.get("explanation") or {}).get("reason") or ""]
    summary = (found.get("explanation") or {}).get("summary")
    return Row(model.name, case.label, profile, moved, counts[0], counts[1] if len(counts) > 1 else "", expected or "", at, found["status"], cls,
               "=".join(names) + (f" ({summary})" if summary else ""), "=".join(case.names), "; ".join(more)[:200], "; ".join(filter(None, reasons))[:300], shlex.join(command))


def tables(rows, profiles, out):
    """Bugs by profile, then sound runs by class and profile. Returns what must not be: NOISE, wrong names, false alarms."""
    bugs, clean = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter)
    for row in rows:
        if row.right is None:
            clean[row.label.rsplit(".", 1)[0], row.profile][f"{row.status} {row.cls.split()[0]}"] += 1
            continue
        t = bugs[row.profile]
        t["bugs"] += 1
        t[row.outcome] += 1
        t[row.named] += 1
        t["has a name"] += bool(row.right)
        t["more bugs"] += row.outcome == "located" and bool(row.more)
    print("| recorded | bugs with effect | " + " | ".join(OUTCOMES) + " | with a row | located, and more bugs that are none |\n|---|" + "---|" * (len(OUTCOMES) + 3), file=out)
    for profile in profiles:
        t = bugs[profile]
        print(f"| {profile} | {t['bugs']} | " + " | ".join(str(t[o]) for o in OUTCOMES) + f" | {t['has a name']} | {t['more bugs']} |", file=out)
    kinds = list(dict.fromkeys(kind for kind, _ in clean))
    print("\n| sound engine | " + " | ".join(profiles) + " |\n|---|" + "---|" * len(profiles), file=out)
    for kind in kinds:
        print(f"| {kind} | " + " | ".join(", ".join(f"{k} {n}" for k, n in sorted(clean[kind, p].items())) for p in profiles) + " |", file=out)
    runs = sum(n for c in clean.values() for n in c.values())
    alarms = sum(n for c in clean.values() for k, n in c.items() if k.startswith("diverged"))
    print(f"\nfalse alarms: {alarms} of {runs}", file=out)
    return sum(t["NOISE"] + t["wrong name"] for t in bugs.values()) + alarms
