from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)

team = Agent(name="team", model="house")
result = Runner.run_sync(team, "Heron or Kestrel for a daily commute of 12 km?", max_turns=10)
print(result.final_output)
