from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)

writer = Agent(name="writer", instructions="You write recommendations.", model="gpt-4.1")
analyst = Agent(name="analyst", instructions="You compare costs, then hand over.", model="gpt-4.1", handoffs=[writer])
researcher = Agent(
    name="researcher", instructions="You look up facts, then hand over.", model="gpt-4.1", handoffs=[analyst]
)
triage = Agent(
    name="triage", instructions="Hand the customer over to the right agent.", model="gpt-4.1", handoffs=[researcher]
)
result = Runner.run_sync(triage, "Heron or Kestrel for a daily commute of 12 km?", max_turns=10)
print(result.final_output)
