from crewai import LLM, Agent, Crew, Process, Task

llm = LLM(model="openai/gpt-4.1")
researcher = Agent(role="researcher", goal="Look up facts about bicycles.", backstory="You know every model.", llm=llm)
analyst = Agent(role="analyst", goal="Compare costs and benefits.", backstory="You like numbers.", llm=llm)
writer = Agent(role="writer", goal="Write recommendations.", backstory="You write for customers.", llm=llm)

question = "Heron or Kestrel for a daily commute of 12 km?"
answer = Task(description=question, expected_output="One paragraph.")

crew = Crew(agents=[researcher, analyst, writer], tasks=[answer], process=Process.hierarchical, manager_llm=llm)
print(crew.kickoff())
