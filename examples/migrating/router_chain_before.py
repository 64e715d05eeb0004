from typing import Literal

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model="gpt-4.1")


def expert(instructions: str) -> Runnable[dict[str, str], str]:
    prompt = ChatPromptTemplate([("system", instructions), ("human", "{question}")])
    return prompt | model | StrOutputParser()


experts = {
    "advice": expert("You advise customers which bicycle to buy."),
    "repairs": expert("You explain repairs step by step."),
}


class Route(BaseModel):
    """The expert who answers best: advice (which bicycle to buy) or repairs (how to mend one)."""

    destination: Literal["advice", "repairs"]


router = ChatPromptTemplate.from_template("Choose an expert for: {question}") | model.with_structured_output(Route)


def route(inputs: dict[str, str]) -> Runnable[dict[str, str], str]:
    choice = Route.model_validate(router.invoke(inputs))
    return experts[choice.destination]


chain = RunnableLambda(route)
print(chain.invoke({"question": "Heron or Kestrel for a daily commute of 12 km?"}))
