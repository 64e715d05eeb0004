from crewai import LLM, Agent, Crew, Task

llm = LLM(model="house", provider="openai")
team = Agent(role="team", goal="Answer the customer.", backstory="You are a team of specialists.", llm=llm)

question = "Heron or Kestrel for a daily commute of 12 km?"
answer = Task(description=question, expected_output="One paragraph.", agent=team)

crew = Crew(agents=[team], tasks=[answer])
print(crew.kickoff())
