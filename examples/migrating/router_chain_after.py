from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from langchain_conductor import ChatConductor
from rl_conductor import Limits

model = ChatOpenAI(model="gpt-4.1")


def expert(instructions: str) -> Runnable[dict[str, str], str]:
    prompt = ChatPromptTemplate([("system", instructions), ("human", "{question}")])
    return prompt | model | StrOutputParser()


experts = {
    "advice": {
        "model": expert("You advise customers which bicycle to buy."),
        "description": "advises which bicycle to buy",
    },
    "repairs": {"model": expert("You explain repairs step by step."), "description": "explains how to mend a bicycle"},
}


question = ChatPromptTemplate.from_template("{question}")
chain = question | ChatConductor(experts, planner=model, limits=Limits(steps=1)) | StrOutputParser()
print(chain.invoke({"question": "Heron or Kestrel for a daily commute of 12 km?"}))
