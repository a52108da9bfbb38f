"""Programs on PATH that record their calls and simulate a cloud or a cluster."""

import json
import os
import sys

# A cloud with one slice. `plays` maps an action to the outcomes of its next calls; calls after
# these succeed.
_GCLOUD = """
import json, os, sys
folder, words = os.environ["FAKE"], sys.argv[1:]
with open(f"{folder}/calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
with open(f"{folder}/world") as file:
    world = json.load(file)
# The first call decides between queued resources and plain slices.
verb, queued = words[3], world.setdefault("queued", words[2] == "queued-resources")
command = next((w for w in words if w.startswith("--command=")), "")
of_command = ("uv pip", "follow", "status", "tail", "stop", "start")
act = next((a for a in of_command if a in command), verb).replace("uv pip", "install")
play = (world["plays"].get(act) or [None]).pop(0)
ready = "ACTIVE" if queued else "READY"
code, output, errors = 0, "", ""
if act == "describe":
    if play == "cut off":
        code, errors = 1, "ERROR: no route to host"
    elif world["state"] is None:
        code, errors = 1, "ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource was not found"
    else:
        output = world["state"]
        world["state"] = (world["then"] or [world["state"]]).pop(0)
elif act == "create":
    world["state"] = ready
    if play == "no capacity":
        world["state"], code = None, 1
        errors = "ERROR: code 8: There is no more capacity in the zone"
    elif play == "denied":
        world["state"], code = None, 1
        errors = "ERROR: Quota limit 'TPUV3CoresPerProjectPerZone' has been exceeded"
    elif play == "half":
        world["state"], code, errors = "CREATING", 1, "ERROR: internal error"
    elif play:
        world["state"], *world["then"] = play
elif act == "delete":
    if play == "denied":
        code, errors = 1, "ERROR: PERMISSION_DENIED"
    else:
        world["state"] = None
elif act == "follow":
    output = "step 1"
    if play == "preempted":
        world["state"], code = "SUSPENDED" if queued else "PREEMPTED", 255
    elif play == "dropped":
        code = 255
    elif play:
        code = 1
        world["plays"].setdefault("status", []).insert(0, f"ended {play}")
elif act == "status":
    output, code = (play or "at work", 0) if world["state"] == ready else ("", 255)
elif play:
    code, errors = 1, play
with open(f"{folder}/world", "w") as file:
    json.dump(world, file)
print(output)
print(errors, file=sys.stderr)
sys.exit(code)
"""


def program(folder, name, text):
    """Writes a Python program; returns the environment with this program on PATH."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!{sys.executable} -SE\n{text}")  # starts faster without site-packages
    path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "FAKE": str(folder),
        "HOME": str(folder),
    }


def cloud(folder, state=None, **plays):
    """Writes a fake gcloud for a slice in this state; returns the environment that uses it."""
    (folder / "world").write_text(json.dumps({"state": state, "then": [], "plays": plays}))
    return program(folder, "gcloud", _GCLOUD)


def state(folder):
    """The current state of the slice."""
    return json.loads((folder / "world").read_text())["state"]


def calls(folder):
    """The arguments of all calls of a fake program."""
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
