#!/usr/bin/env python3
"""The least that a provider of kind `exec` does (see docs/providers.md): each machine is a folder of this host with a runner in it.
Started as: plain.py ROOT REPL VERB, with the question on stdin; answers with one line of JSON."""
import fcntl, json, os, re, shutil, subprocess, sys
root, repl, verb, ask = sys.argv[1], sys.argv[2], sys.argv[3], json.load(sys.stdin)
name = ask.get("handle") or ask.get("name") or ""
home, quiet = os.path.join(root, name), subprocess.DEVNULL
def answer(**it): print(json.dumps(it)); sys.exit()
def fail(kind, what): answer(error={"kind": kind, "what": what, "effect": "none"})
def nonce(machine): return json.load(open(os.path.join(root, machine, "runner.json")))["nonce"]
if verb != "list" and not re.fullmatch(r"repl-[a-z0-9]+-[a-z0-9]+-[a-z0-9]+", name): fail("invalid_spec", "no machine of ours")
os.makedirs(root, exist_ok=True); one_at_a_time = open(os.path.join(root, ".lock"), "w"); fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
ours = sorted(it for it in os.listdir(root) if os.path.exists(os.path.join(root, it, "runner.json")))
stranger = name in ours and "nonce" in ask and nonce(name) != ask["nonce"]
if verb == "find": answer(handle=name if name in ours else None)
if verb == "inspect": answer(seen="stranger" if stranger else "alive" if name in ours else "gone")
if verb == "list":
    found = [it for it in ours if it.startswith(ask["prefix"]) and it > (ask["after"] or "") and ask["region"] in (None, "here")]
    page = [dict(kind="instance", name=it, handle=it, nonce=nonce(it), status="running", region="here") for it in found[:ask["limit"]]]
    answer(listed=page, next=page[-1]["name"] if len(found) > len(page) else None)
if stranger: fail("not_found", name + " is another machine: left alone")
if verb == "spawn" and name not in ours:
    if len(ours) >= ask["max_instances"]: fail("capacity", "no more machines are allowed")
    os.makedirs(home, mode=0o700, exist_ok=True)
    with open(os.open(home + "/runner.json", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file: json.dump(ask["boot"], file)
    subprocess.Popen([repl, "runner", "--dir", home], cwd=home, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
if verb == "terminate" and name in ours:
    subprocess.run([repl, "runner", "--dir", home, "--end"], check=True, stdout=sys.stderr)
    shutil.rmtree(home)
answer(handle=name)
