"""The questions in what a language model replies."""

from __future__ import annotations

import pytest

from pipelines.questions.parsing import questions_of


@pytest.mark.parametrize(
    ("reply", "questions"),
    [
        ("What is a lane?\nHow long is a row?", ["What is a lane?", "How long is a row?"]),
        ("1. What?\n2) How?\n(3) Why?", ["What?", "How?", "Why?"]),
        ("- What?\n* How?\n\u2022 Why?", ["What?", "How?", "Why?"]),
        ("Here are three questions:\n\n1. What?\n", ["What?"]),
        ("Question 1: What?\nQ2. How?", ["What?", "How?"]),
        ("A question: What?\nAnswer: How?", ["What?", "How?"]),
        ("\u201cWhat?\u201d\n**How?**", ["What?", "How?"]),
        ('["What?", "How?"]', ["What?", "How?"]),
        ('```json\n{"questions": ["What?", {"question": "How?"}]}\n```', ["What?", "How?"]),
        ('["What?", "How', ["What?"]),
        ('Sure:\n```json\n[\n  "What?",\n  "How do', ["What?"]),
        ('{"count": 2, "questions": ["What?", "How', ["What?"]),
        ('{"count": 2, "questions": ["What?", "How?"]}', ["What?", "How?"]),
        ('Here they are: ["What?", "How?"]', ["What?", "How?"]),
        ('[{"id": 1, "type": "what", "question": "What?"}]', ["What?"]),
        ('[\n "What?",\n {"question": "How?"}\n]', ["What?", "How?"]),
        ('{"question": "What?"}\n{"question": "How?", "tags": ["x"]}', ["What?", "How?"]),
        ('{"1": "What?", "2": "How?"}', ["What?", "How?"]),
        ("**Question 1:** What?\n**2. How?**\n**3.** Why?", ["What?", "How?", "Why?"]),
        ("1\u3001\u4ec0\u4e48\uff1f\n2.How?", ["\u4ec0\u4e48\uff1f", "How?"]),
        ("**Questions:**\nWhat?\n---\nHow?\nWhy?\nWhen?", ["What?", "How?", "Why?", "When?"]),
        ("Sure! Here you go.\nA?\nB?\nC?\nD?", ["A?", "B?", "C?", "D?"]),
        ("Sure! Here you go.\n1. to lane\n2. to row\nHope it helps.", ["to lane", "to row"]),
        ("See [the page](a/b): what is it?", ["See [the page](a/b): what is it?"]),
        ("<think>The user wants\nquestions.</think>\nWhat?", ["What?"]),
        ("<think>It never stops thinking", []),
        ("The user wants one.\nMaybe this?</think>\n\nWhat?", ["What?"]),
        ("<think>One</think>Maybe?<think>Two</think>\nWhat?", ["What?"]),
        ("What?\nHow?\nWhy?\nWhen?\nWho?", ["What?", "How?", "Why?", "When?"]),
        ("", []),
        ("\n \n", []),
        ("3.5 mm jacks: what are they?", ["3.5 mm jacks: what are they?"]),
        ("2.x or 3.NET?", ["2.x or 3.NET?"]),
        ("## Queries\nlane width\nrow count", ["lane width", "row count"]),
        ("```text\nlane width\nrow count\n```", ["lane width", "row count"]),
        ("1. Weltkrieg\nVersailler Vertrag", ["Weltkrieg", "Versailler Vertrag"]),
        (
            "#include guard c++\n> 50 rules\n**A** and B",
            ["#include guard c++", "> 50 rules", "A** and B"],
        ),
        ("Lanes are wide.\n\nWould you like more?", ["Lanes are wide.", "Would you like more?"]),
        ('[{"statement": "Lanes are wide.", "label": "supports"}]', ["Lanes are wide."]),
        ('{"pregunta": "\u00bfQu\u00e9 es?", "tipo": "definici\u00f3n"}', ["\u00bfQu\u00e9 es?"]),
        ('["1. What?", "Q2: How?"]', ["What?", "How?"]),
        ('{"text": "About lanes", "questions": ["What?"]}', ["What?"]),
        ('{"questions": []}', []),
        ('How?\nWhat is ["a", "b"][0]?\nWhy?', ["How?", 'What is ["a", "b"][0]?', "Why?"]),
        ('What does it do?\n{"a": 1}\nHow?', ["What does it do?", '{"a": 1}', "How?"]),
    ],
)
def test_questions_are_found_in_the_forms_that_models_write(reply, questions):
    assert questions_of(reply, 4) == questions


@pytest.mark.parametrize(
    ("reply", "questions"),
    [
        ("1. What?\n2. How does", ["What?"]),
        ("<think>Maybe one\nWhat?", []),
        ('["What?", "How does', ["What?"]),
        ("What", []),
    ],
)
def test_half_a_question_is_none(reply, questions):
    assert questions_of(reply, 4, is_cut=True) == questions


def test_blank_lines_without_end_take_no_time():
    assert questions_of("\n" * 200_000 + "What?", 1) == ["What?"]
