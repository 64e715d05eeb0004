from crewai import LLM, Agent, Crew, Task

llm = LLM(model="openai/gpt-4.1")
researcher = Agent(role="researcher", goal="Look up facts about bicycles.", backstory="You know every model.", llm=llm)
analyst = Agent(role="analyst", goal="Compare costs and benefits.", backstory="You like numbers.", llm=llm)
writer = Agent(role="writer", goal="Write recommendations.", backstory="You write for customers.", llm=llm)

question = "Heron or Kestrel for a daily commute of 12 km?"
facts = Task(description=f"Look up the facts: {question}", expected_output="A list of facts.", agent=researcher)
costs = Task(description=f"Compare the costs: {question}", expected_output="Numbers.", agent=analyst, context=[facts])
answer = Task(description=question, expected_output="One paragraph.", agent=writer, context=[facts, costs])

crew = Crew(agents=[researcher, analyst, writer], tasks=[facts, costs, answer])
print(crew.kickoff())
