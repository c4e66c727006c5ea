"""Chat templates in the style of real models."""

from pathlib import Path

WHOLE_CHAT = Path(__file__).with_name("whole_chat.jinja")
"""A file: every message as it is, between the marks of `guide`, whose own template need not show all of them."""

LLAMA_3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today: ' + strftime_now('%Y') + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if loop.index0 > 1000 %}{% break %}{% endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- if messages[0].role != 'system' %}<|im_start|>system
Be brief.<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ content }}{% endgeneration %}
    {%- else %}
        {{- content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate: user, assistant, user, ...') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + message['content'] + eos_token }}{% endif %}
{%- endfor %}"""

# As Llama 4 with calls that are a list of Python, and as LFM2.5; the latter does not escape quotes.
PYTHONIC = """{{- bos_token }}
{%- if tools %}{{- 'Use exact format: [func_name1(param1=value1), func_name2(...)]' ~ tools | tojson }}{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {{- '[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name + '(' }}
            {%- for key, value in call.function.arguments.items() %}
                {{- key ~ '=' ~ ('"' ~ value ~ '"' if value is string else value) ~ ('' if loop.last else ', ') }}
            {%- endfor %}
            {{- ')' ~ ('' if loop.last else ', ') }}
        {%- endfor %}
        {{- ']' }}
    {%- else %}{{- message['content'] }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
LFM2 = PYTHONIC.replace("'['", "'<|tool_call_start|>['").replace("']'", "']<|tool_call_end|>'").replace(
    """'"' ~ value ~ '"'""", '''"'" ~ value ~ "'"'''
).replace("Use exact format: [func_name1(param1=value1), func_name2(...)]", "List of tools: ")  # fmt: skip

# As Llama 3.1: `%s` says what becomes of a message with several calls.
_ONE_CALL = """{{- bos_token }}
{%%- if tools %%}
    {{- 'Environment: ipython. Respond in the format {"name": ..., "parameters": ...}' ~ tools | tojson }}
{%%- endif %%}
{%%- for message in messages %%}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%%- if message.tool_calls %%}%s
        {%%- set call = message.tool_calls[0].function %%}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}' }}
    {%%- else %%}{{- message['content'] }}
    {%%- endif %%}
    {{- '<|eot_id|>' }}
{%%- endfor %%}
{%%- if add_generation_prompt %%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%% endif %%}
"""
ONE_CALL = _ONE_CALL % (
    "{%- if not message.tool_calls | length == 1 %}"
    "{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}"
)
FIRST_CALL = _ONE_CALL % ""
"""Leaves out all calls but the first one."""

GRANITE = """{%- if tools %}{{- '<|tool_call|>' ~ tools | tojson }}
{%- elif thinking %}{{- 'Write your thoughts between <think></think> for each user query. ' }}
{%- else %}{{- 'You are a helpful AI assistant. ' }}
{%- endif %}
{%- for message in messages %}{{- message.role ~ ': ' ~ message.content ~ '; ' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{% endif %}"""
"""As Granite 3.3: reasons if it is asked to, and nothing at the end of the prompt says whether it is."""

# As Gemma 2: no system message, and roles that alternate.
GEMMA_2 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# As Gemma 3 and Llama 2: one system message, which becomes a part of the first question.
GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (system if loop.first else '') + message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# As Mistral 7B v0.3 and Nemo: the system message is in the last question.
MISTRAL_3 = """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == 'tool' or message.tool_calls is defined) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('After the optional system message, roles must alternate user/assistant/...') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] ' }}{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}
    {%- elif message['role'] == 'tool' %}
        {{- '[TOOL_RESULTS] ' + message['content'] + '[/TOOL_RESULTS]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""

# As Phi-3: what is not of the user or the assistant is left out.
PHI_3 = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n<|assistant|>\\n' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + '<|end|>\\n' }}{% endif %}
{%- endfor %}"""

# As Qwen 3.5: a system message is the first one, or the chat is rejected.
QWEN_FIRST = """{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
