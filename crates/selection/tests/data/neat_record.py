#!/usr/bin/env python3
"""Records what NEAT's policy manager in Python answers, for crates/selection/tests/neat.rs. Needs Python 3.9 and a checkout of
https://github.com/NEAT-project/neat, of which it runs policy/ as it is, in processes of their own; nothing of it is copied.

    neat_record.py NEAT/policy neat.json > again.json                      our own questions, recorded once more
    neat_record.py NEAT/policy > neat_published.json                       questions over NEAT's published examples
    NEAT_POLICY=NEAT/policy cargo test -p anabranch-selection --test neat       compares those with our NEAT mode

Every question is asked with several hash seeds and orders of directories; an answer that differs between them is recorded
as "varies", an exception as "error". Groups of equal score are in the order of text.
"""
import ast
import code
import contextlib
import io
import json
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from operator import attrgetter

SEEDS = 6
NOW = 1_800_000_000
PIB = "examples/pib/"
DEFAULT = {"file": PIB + "default.profile"}
PROFILES = [{"file": PIB + f} for f in ("low_latency.profile", "low_latency_tcp.profile", "reliable_transports.profile")]
POLICIES = [{"file": f} for f in (PIB + "elephant_flows.policy", PIB + "mptcp_so.policy", PIB + "test.policy",
                                  "pib/example/mptcp.policy")]


def access(name, wired, mtu, capacity, rtt):
    """A CIB node for an interface, in the manner of NEAT's documentation."""
    fixed = {"interface": name, "is_wired_interface": wired, "capacity": capacity, "local_ip": f"192.0.2.{len(name)}"}
    node = {key: {"value": value, "precedence": 2} for key, value in fixed.items()}
    node["MTU"] = {"value": {"start": 50, "end": mtu}}
    if rtt is not None:
        node["RTT"] = {"value": rtt, "precedence": 2}
    return {"uid": name, "root": True, "link": False, "expire": -1, "priority": 4, "properties": node}


def settings():
    """Profiles, policies and CIBs to ask about."""
    two = [access("eth0", True, 9000, 10000, 12), access("wlan0", False, 1500, 300, 80)]
    far = {"uid": "far", "root": False, "link": True, "expire": -1, "priority": 2,
           "match": [{"interface": {"value": "eth0"}}],
           "properties": {"remote_ip": {"value": "8.8.8.8", "precedence": 2, "score": 2}}}
    past = {"uid": "past", "root": False, "link": False, "expire": -1, "priority": 10,
            "match": [{"interface": {"value": "eth0"}}],
            "properties": [{"transport": {"value": "TCP", "precedence": 1},
                            "__cached": {"value": True, "precedence": 2, "score": 5}}]}
    yield "no cib", PROFILES, POLICIES, []
    yield "as shipped", [DEFAULT] + PROFILES, POLICIES, []
    yield "two accesses", PROFILES, POLICIES, two
    yield "accesses and defaults that conflict", [DEFAULT] + PROFILES, POLICIES, two
    yield "a far end", PROFILES, POLICIES, two + [far]
    yield "a past", PROFILES, POLICIES, two + [far, past]


def questions():
    """Requests, of NEAT's own and of the kinds its examples are about."""
    yield "its request", {"file": "request.json"}
    one = {
        "reliable": {"transport": {"value": "reliable"}},
        "reliable at any price": {"transport": {"value": "reliable", "precedence": 2}},
        "tcp": {"transport": {"value": "TCP", "precedence": 2}},
        "quick": {"transport": {"value": "reliable"}, "low_latency": {"value": True, "precedence": 1}},
        "quick tcp": {"transport": {"value": "TCP"}, "low_latency": {"value": True, "precedence": 2}},
        "multipath": {"transport": {"value": "MPTCP"}},
        "several transports": {"transport": {"value": ["MPTCP", "TCP", "UDP"], "precedence": 1}},
        "elephant": {"transport": {"value": "TCP"}, "flow_size_bytes": {"value": 2e7, "precedence": 2}},
        "mouse": {"transport": {"value": "TCP"}, "flow_size_bytes": {"value": 2e3, "precedence": 2}},
        "far": {"transport": {"value": "reliable"}, "remote_ip": {"value": "8.8.8.8", "precedence": 2}},
        "elsewhere": {"transport": {"value": "reliable"}, "remote_ip": {"value": "8.8.4.4", "precedence": 2}},
        "wired": {"transport": {"value": "reliable"}, "is_wired_interface": {"value": True, "precedence": 2}},
        "wide": {"transport": {"value": "reliable"}, "capacity": {"value": {"start": 1000, "end": 1e9}, "precedence": 2}},
        "large packets": {"transport": {"value": "reliable"}, "MTU": {"value": {"start": 2000, "end": 9000}, "precedence": 2}},
        "quality": {"transport": {"value": "TCP"}, "quality": {"value": 3, "precedence": 1}},
    }
    for name, request in one.items():
        yield name, [request]


def published():
    """Every question in every setting."""
    for setting, profiles, policies, cib in settings():
        for name, request in questions():
            yield {"name": f"{setting}: {name}", "setting": setting, "profiles": profiles, "policies": policies, "cib": cib,
                   "request": request}


def text(policy, document):
    if isinstance(document, dict) and list(document) == ["file"]:
        return (policy / document["file"]).read_text()
    return document if isinstance(document, str) else json.dumps(document)


def functions(policy):
    """What neatpmd defines, without its servers."""
    tree = ast.parse((policy / "neatpmd").read_text())
    names = {"process_special_properties", "cleanup_special_properties", "convert_json_request", "__convert_req",
             "process_request"}
    keep = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
    return compile(ast.Module(body=keep, type_ignores=[]), "neatpmd", "exec")


def prepare(policy, seed):
    """Time stands still, and directories are in an order of their own, in this process."""
    sys.path.insert(0, str(policy))
    orders, listdir, walk = random.Random(seed), os.listdir, os.walk

    def shuffled(names):
        names = sorted(names)
        orders.shuffle(names)
        return names

    def interact(**_):
        raise RuntimeError("it opens a prompt")
    time.time = lambda: NOW
    os.listdir = lambda *a: shuffled(listdir(*a))
    os.walk = lambda *a: ((at, folders, shuffled(files)) for at, folders, files in walk(*a))
    os.environ.setdefault("HOME", tempfile.gettempdir())
    code.interact = interact
    logging.disable(logging.CRITICAL)


def ask(policy, case):
    """One answer."""
    import pmdefaults
    import pmhelper
    import policy as neat
    from cib import CIB
    from pib import PIB as Repository
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        at = pathlib.Path(folder)
        for kind, suffix in (("profiles", "profile"), ("policies", "policy"), ("cib", "cib")):
            (at / kind).mkdir()
            for i, document in enumerate(case[kind]):
                (at / kind / f"{i}.{suffix}").write_text(text(policy, document))
        scope = {"json": json, "logging": logging, "policy": neat, "pmhelper": pmhelper, "PM": pmdefaults,
                 "deepcopy": deepcopy, "attrgetter": attrgetter, "PropertyArray": neat.PropertyArray,
                 "PropertyMultiArray": neat.PropertyMultiArray, "cib": CIB(str(at / "cib")),
                 "profiles": Repository(str(at / "profiles"), file_extension=".profile"),
                 "pib": Repository(str(at / "policies"), file_extension=".policy")}
        exec(functions(policy), scope)
        requests = scope["convert_json_request"](text(policy, case["request"]))
        candidates = scope["process_request"](requests) if requests else []
        groups = []
        for candidate in candidates:
            # Counted after socket options were renamed, as the reader of an answer would.
            score = list(candidate.score)
            shown = {}
            for key, p in sorted(candidate.items()):
                (d,) = p.dict(full=True).values()
                value = d["value"]
                if isinstance(value, list):
                    value = sorted(value, key=json.dumps)
                elif isinstance(value, dict):
                    value = {k: plain(v) for k, v in value.items()}
                shown[str(p.key)] = {"value": plain(value), "precedence": p.precedence, "score": plain(p.score),
                                     "evaluated": p.evaluated}
            score = [plain(s) for s in score]
            if not groups or groups[-1]["score"] != score:
                groups.append({"score": score, "candidates": []})
            groups[-1]["candidates"].append(shown)
        for group in groups:
            group["candidates"].sort(key=lambda c: json.dumps(c, sort_keys=True))
        return {"groups": groups}


def plain(value):
    """Numbers as our test writes them."""
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            return "Inf" if value > 0 else "-Inf"
        return int(value) if value == int(value) else value
    return value


def ask_all(policy, seed):
    """Every answer, or the exception it stops with."""
    prepare(policy, seed)
    for line in sys.stdin:
        try:
            answer = ask(policy, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer))


def record(policy, cases):
    """Cases with the answers all seeds agree on."""
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    answers = []
    for seed in range(SEEDS):
        done = subprocess.run([sys.executable, __file__, str(policy), "--all", str(seed)], input=lines, check=True,
                              stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)})
        answers.append([json.loads(line) for line in done.stdout.splitlines()])
    for case, *of_seeds in zip(cases, *answers):
        same = all(answer == of_seeds[0] for answer in of_seeds)
        yield {**case, "answer": of_seeds[0] if same else {"varies": True}}


def main():
    policy = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2:3] == ["--all"]:
        return ask_all(policy, int(sys.argv[3]))
    own = json.loads(pathlib.Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else None
    cases = own["cases"] if own else list(published())
    named = {}
    recorded = []
    for case in record(policy, cases):
        if "setting" in case:
            # Written once.
            named[case["setting"]] = {kind: case.pop(kind) for kind in ("profiles", "policies", "cib")}
        recorded.append(json.dumps(case, sort_keys=True))
    provenance = own["provenance"] if own else (
        "Questions written for this project over NEAT's published examples (named by \"file\", not copied) and CIB nodes of our "
        "own; answers recorded by neat_record.py from https://github.com/NEAT-project/neat at a5e1662.")
    print('{"provenance": ' + json.dumps(provenance) + ',\n "settings": ' + json.dumps(named) + ',\n "cases": [\n ' + ",\n ".join(recorded) + "\n]}")


if __name__ == "__main__":
    main()
