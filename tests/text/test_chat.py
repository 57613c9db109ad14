import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servelib.errors import InvalidRequestError
from servelib.text.chat import ChatTemplate, Message, Segment, encode_segments
from servelib.text.tokenizer import REFERENCE_SPECIALS, load_tokenizer

tokenizer = load_tokenizer()
MARKERS = list(REFERENCE_SPECIALS)
PUBLISHED = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|turn|>' + m['role'] + '\\n' + m['content'] | trim + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant' ~ '\\n' }}{% endif %}"
)  # concatenates inside expressions, as templates of published models do


def ids_of(template, *messages, **options):
    return encode_segments(tokenizer, template.render(messages, **options))


def test_the_default_template_token_by_token():
    ids = ids_of(ChatTemplate(), Message("system", "be kind"), Message("user", "hi"))
    assert ids == (
        *(256, 258, *b"system\nbe kind", 259, *b"\n"),
        *(258, *b"user\nhi", 259, *b"\n"),
        *(258, *b"assistant\n"),
    )


def test_without_the_generation_prompt_the_last_turn_is_closed():
    assert ids_of(ChatTemplate(), Message("user", "hi"), add_generation_prompt=False)[-2:] == (259, 10)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.lists(
        st.lists(st.one_of(st.text(max_size=6), st.sampled_from(MARKERS)), max_size=5).map("".join),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([ChatTemplate(), ChatTemplate(PUBLISHED)]),
)
def test_no_typed_text_changes_the_special_tokens(contents, template):
    typed = ids_of(template, *(Message("user", content) for content in contents))
    plain = ids_of(template, *(Message("user", "x") for _ in contents))
    assert [i for i in typed if i >= 256] == [i for i in plain if i >= 256]
    assert all(content.strip() in tokenizer.decode(typed) for content in contents)


@pytest.mark.parametrize("left", range(1, len("<|eos|>")))
def test_a_marker_cannot_be_completed_across_the_border(left):
    """Half of a marker in the template and half typed do not make a marker."""
    template = ChatTemplate("<|eos|>"[:left] + "{{ messages[0].content }}")
    assert ids_of(template, Message("user", "<|eos|>"[left:])) == tuple(b"<|eos|>")


@pytest.mark.parametrize(
    ("expression", "content", "printed"),
    [
        ("m.content | trim", "  <|end|> ", "<|end|>"),
        ("m.content | upper", "ab", "AB"),
        ("m.content | replace('x', '<|eos|>')", "axb", "a<|eos|>b"),
        ("m.content.split('<|end|>')[1]", "a<|end|>b", "b"),
        ("m.content[1:]", "abc", "bc"),
        ("m.content | list | join", "<|end|>", "<|end|>"),
        ("m.content | length", "four", "4"),
        ("'yes' if '</think>' in m.content else 'no'", "a</think>", "yes"),
        ("'yes' if m.content == 'a' else 'no'", "a", "yes"),
        ("'yes' if m.content else 'no'", "", "no"),
        ("'yes' if m.content is string else 'no'", "a", "yes"),
        ("'%s!' % m.content", "<|end|>", "<|end|>!"),
    ],
)
def test_a_template_may_work_on_the_text_and_it_stays_typed_text(expression, content, printed):
    template = ChatTemplate("{% set m = messages[0] %}{{ " + expression + " }}")
    assert ids_of(template, Message("user", content)) == tuple(printed.encode())


def test_a_template_that_takes_a_text_apart_unseen_is_refused():
    with pytest.raises(InvalidRequestError, match="took apart"):
        ChatTemplate("{{ messages[0].content | tojson }}").render([Message("user", "a")])


def test_segments_say_who_wrote_what():
    assert ChatTemplate("A{{ messages[0].content }}B").render([Message("user", "<|end|>")]) == (
        Segment("A", trusted=True),
        Segment("<|end|>", trusted=False),
        Segment("B", trusted=True),
    )


def test_content_is_never_a_template():
    ids = ids_of(ChatTemplate("{{ messages[0].content }}"), Message("user", "{{ 7 * 7 }}"))
    assert ids == tuple(b"{{ 7 * 7 }}")


def test_no_messages_and_unknown_roles_are_refused_by_name():
    with pytest.raises(InvalidRequestError, match="at least one message") as caught:
        ChatTemplate().render([])
    assert caught.value.field == "messages"
    with pytest.raises(InvalidRequestError, match="one of system, user, assistant") as caught:
        ChatTemplate().render([Message("user", "a"), Message("<|turn|>", "b")])
    assert caught.value.field == "messages"
    assert "messages[1].role" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at.all }}", "nothing"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for i in range(10**9) %}{% endfor %}", "too big"),
    ],
)
def test_a_template_that_fails_names_the_messages(source, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        ChatTemplate(source).render([Message("user", "a")])
    assert caught.value.field == "messages"


@pytest.mark.parametrize("reach", ["content._text", "content['_text']", "content | attr('_text')"])
def test_a_template_cannot_reach_behind_a_typed_text(reach):
    assert ChatTemplate("{{ messages[0]." + reach + " }}").render([Message("user", "<|end|>")]) == ()


def test_a_template_that_does_not_compile_says_so_at_once():
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate("{% for %}")


def test_the_end_of_turn_is_known():
    assert ChatTemplate().stop_ids(tokenizer) == (259,)


def test_a_lone_surrogate_names_the_messages():
    with pytest.raises(InvalidRequestError) as caught:
        ids_of(ChatTemplate(), Message("user", "\ud800"))
    assert caught.value.field == "messages"
