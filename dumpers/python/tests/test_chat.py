"""firstdiff.chat against what transformers gives for the same templates, written down here."""

import pytest

jinja2 = pytest.importorskip("jinja2")
from firstdiff.chat import render  # noqa: E402

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'Say "hé".'}]
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def test_a_template_is_rendered_with_the_assistants_turn_open():
    assert render(CHATML, MESSAGES) == '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSay "hé".<|im_end|>\n<|im_start|>assistant\n'


def test_blocks_are_trimmed_as_transformers_does():
    assert render("{% if true %}\n  a\n  {% endif %}\nb", []) == "  a\nb"


def test_tokens_json_and_loop_controls_are_there():
    template = "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    assert render(template, MESSAGES, bos_token="<s>") == '<s>{"role": "system", "content": "Be brief."}'


def test_a_template_may_refuse_and_may_not_reach_out():
    with pytest.raises(jinja2.TemplateError, match="no system"):
        render("{{ raise_exception('no system') }}", MESSAGES)
    with pytest.raises(jinja2.exceptions.SecurityError):
        render("{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__ }}", MESSAGES)
