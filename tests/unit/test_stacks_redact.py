import pytest

from mltop.probes.collect.stacks.redact import integer_locals, looks_secret, redact_threads


def local(name, text):
    return {"name": name, "addr": 1, "arg": False, "repr": text}


def test_only_whole_integers_pass():
    given = [
        local("step", "5"),
        local("offset", "-12"),
        local("done", "True"),
        local("name", '"12"'),
        local("lr", "0.1"),
        local("huge", "+bigint"),
        local("nothing", None),
        local("shape", "[4, 4]"),
        local("trailing", "5\n"),
        local("other_digits", "٣"),
    ]
    assert integer_locals(given) == {"step": 5, "offset": -12}


@pytest.mark.parametrize("name", ["api_key", "key", "hfToken", "PIN", "pin", "user_password", "SECRET", "apikey2"])
def test_names_that_look_like_secrets(name):
    assert looks_secret(name)
    assert integer_locals([local(name, "1234")]) == {}


@pytest.mark.parametrize("name", ["step", "num_tokens", "spin", "keys_seen", "pinned_bytes", "monkey", "i"])
def test_names_that_do_not(name):
    assert not looks_secret(name)


@pytest.mark.parametrize(("ints", "kept"), [(True, [local("step", "5")]), (False, [])])
def test_raw_threads_keep_integers_only_and_no_command_line(ints, kept):
    frame = {"name": "f", "filename": "a.py", "line": 1, "locals": [local("step", "5"), local("s", '"sk-1"')]}
    thread = {"os_thread_id": 1, "frames": [frame], "process_info": {"command_line": "train --key sk-2"}}
    (redacted,) = redact_threads([thread], ints)
    assert redacted["frames"][0]["locals"] == kept
    assert "sk-" not in repr(redacted)
    assert frame["locals"][1]["repr"] == '"sk-1"'  # what was given is not changed
