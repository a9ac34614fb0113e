import pytest

from mltop.probes.collect.stacks.digest import Origin, digest_threads
from mltop.probes.collect.stacks.frames import integer_locals, looks_secret, redact_threads
from mltop.probes.model import StackDigest


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


def test_a_name_that_is_a_token():
    assert integer_locals([local("hf_a1B2c3D4e5F6g7H8", "5")]) == {}


@pytest.mark.parametrize("name", ["step", "num_tokens", "spin", "keys_seen", "pinned_bytes", "monkey", "i"])
def test_names_that_do_not(name):
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 5_551_234_567) for name in ("step", "global_step", "it", "epoch", "train_iter", "steps_done")],
        *[(name, 999_999_999) for name in ("i", "idx", "batch_idx", "rank", "world_size", "n", "seq_len", "num_steps")],
        *[(name, -999_999_999) for name in ("i", "seq_size", "batch_size", "dst", "tokens", "num_tokens")],
        *[(name, 999) for name in ("x", "value", "code", "user_id", "offset", "number")],
        *[(name, -999) for name in ("x", "value")],
    ],
)
def test_integers_that_leave_the_node(name, value):
    assert integer_locals([local(name, str(value))]) == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 1000) for name in ("x", "value", "code", "user_id", "zip", "number", "year")],
        *[(name, -1000) for name in ("x", "value", "balance")],
        *[(name, 5_551_234_567) for name in ("i", "rank", "world_size", "n", "phone", "num_steps", "tokens", "index")],
        *[(name, -5_551_234_567) for name in ("i", "size")],
        *[(name, 7) for name in ("pin", "otp", "user_pin", "ssn", "cvv", "token", "salt", "secret_step", "auth_token")],
        ("step", 10**20),
        ("step", 4_111_111_111_111_111),
        *[(name, 5_551_234_567) for name in ("pin_step", "step_pin", "password_iter")],
    ],
)
def test_integers_that_do_not(name, value):
    assert integer_locals([local(name, str(value))]) == {}


def test_texts_of_a_stack_hold_no_tokens():
    token = "hf_abcdefgh12"
    frame = {"name": f"f_{token}", "filename": f"/x/{token}/a.py", "line": 1, "module": f"/{token}.so", "new": "secret"}
    thread = {"thread_name": f"upload password=hunter2 {token}", "frames": [frame], "env": {"A": "secret"}}
    shown = repr(redact_threads([thread], True))
    assert token not in shown and "hunter2" not in shown and "secret" not in shown and "a.py" in shown
    thread["frames"] = [{**frame, "module": None}]
    digest = digest_threads([{**thread, "os_thread_id": 1}], Origin(StackDigest(None, 2), 2), True, lambda *_: None)[0]
    assert digest.thread == "upload password=*** ***"
    assert (digest.frames[0].function, digest.frames[0].file) == ("f_***", "***/a.py")


@pytest.mark.parametrize(("ints", "kept"), [(True, [local("step", "5")]), (False, [])])
def test_raw_threads_keep_integers_only_and_no_command_line(ints, kept):
    frame = {"name": "f", "filename": "a.py", "line": 1, "locals": [local("step", "5"), local("s", '"sk-1"')]}
    thread = {"os_thread_id": 1, "frames": [frame], "process_info": {"command_line": "train --key sk-2"}}
    (redacted,) = redact_threads([thread], ints)
    assert redacted["frames"][0]["locals"] == kept
    assert "sk-" not in repr(redacted)
    assert frame["locals"][1]["repr"] == '"sk-1"'  # what was given is not changed
