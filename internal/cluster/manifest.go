// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster turns a manifest of Cluster API objects into a running
// cluster: it parses and checks the text, applies it to the cluster that is to
// manage it, waits, fetches the credentials, and finds the objects again
// wherever a pivot has taken them.
package cluster

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Object is one document of a manifest with the place where it was written.
type Object struct {
	*unstructured.Unstructured
	// Document counts the documents of the text from 1; Line is the line of the
	// text, as the user wrote it, on which the document starts, from 1.
	Document, Line int
	// places holds the lines of the fields, origins turns them into the user's.
	places  map[string]place
	origins origins
}

// Ref names the object as people do: kind namespace/name.
func (o Object) Ref() string { return refOf(o.Unstructured) }

func refOf(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetKind() + " " + u.GetName()
	}
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// Manifest is a parsed text of Kubernetes objects.
type Manifest struct {
	Objects []Object
}

// placeholder matches ${NAME}, and $${NAME}, which stands for itself.
var placeholder = regexp.MustCompile(`\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Placeholders answers the names of the ${NAME} placeholders in text, sorted and
// each once. $${NAME} is an escape and no placeholder, and comment lines have none.
func Placeholders(text string) []string {
	var names []string
	for line := range strings.SplitSeq(text, "\n") {
		if isComment(line) {
			continue
		}
		for _, m := range placeholder.FindAllStringSubmatch(line, -1) {
			if !strings.HasPrefix(m[0], "$$") {
				names = append(names, m[1])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Load replaces each ${NAME} of text by values[NAME] and $${NAME} by ${NAME}, and
// parses the result. A placeholder without a value is a [Problem], and so is a
// value that no placeholder asks for, since it is a misspelling in nearly every
// case; all problems are answered together. Their lines are those of text,
// however many lines a value has.
func Load(text string, values map[string]string) (*Manifest, error) {
	filled, lines, err := fill(text, values)
	if err != nil {
		return nil, err
	}
	return parse(filled, lines)
}

// origins holds for each line of a filled text the line of the text that it
// comes from; nil where both are the same.
type origins []int

func (o origins) of(line int) int {
	if o == nil {
		return line
	}
	return o[min(max(line, 1), len(o))-1]
}

func fill(text string, values map[string]string) (string, origins, error) {
	if err := checkPlaceholders(text, values); err != nil {
		return "", nil, err
	}
	var filled []string
	var lines origins
	for i, line := range strings.Split(text, "\n") {
		if !isComment(line) {
			line = placeholder.ReplaceAllStringFunc(line, func(m string) string {
				if strings.HasPrefix(m, "$$") {
					return m[1:]
				}
				return values[m[2:len(m)-1]]
			})
		}
		for part := range strings.SplitSeq(line, "\n") {
			filled, lines = append(filled, part), append(lines, i+1)
		}
	}
	return strings.Join(filled, "\n"), lines, nil
}

func checkPlaceholders(text string, values map[string]string) error {
	var problems []error
	names := Placeholders(text)
	for _, name := range names {
		if _, ok := values[name]; !ok {
			problems = append(problems, Problem{Line: lineOfPlaceholder(text, name), Message: fmt.Sprintf("the placeholder ${%s} has no value in substitutions", name)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			problems = append(problems, Problem{Input: InSubstitutions, Message: fmt.Sprintf("the substitution %s is used nowhere in the manifest", name)})
		}
	}
	return errors.Join(problems...)
}

func lineOfPlaceholder(text, name string) int {
	for i, line := range strings.Split(text, "\n") {
		if slices.Contains(Placeholders(line), name) {
			return i + 1
		}
	}
	return 0
}

// isComment says whether a line holds a comment alone. Comments speak of
// placeholders, and nobody reads their values.
func isComment(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "#") }

// documentStart matches the line that separates two YAML documents.
var documentStart = regexp.MustCompile(`^---(\s|$)`)

// Parse reads a manifest's text, in which all placeholders are filled. All
// problems are answered together, each as a [Problem].
func Parse(text string) (*Manifest, error) { return parse(text, nil) }

func parse(text string, source origins) (*Manifest, error) {
	m := &Manifest{}
	var problems []error
	lines := strings.Split(text, "\n")
	start := 0
	number := 0
	flush := func(end int) {
		body := strings.Join(lines[start:end], "\n")
		if isBlank(body) {
			return
		}
		number++
		object, err := parseDocument(document{body: body, number: number, before: start, origins: source})
		if err != nil {
			problems = append(problems, err)
			return
		}
		m.Objects = append(m.Objects, object)
	}
	for i, line := range lines {
		if documentStart.MatchString(line) {
			flush(i)
			start = i + 1
		}
	}
	flush(len(lines))
	problems = append(problems, m.duplicates()...)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return m, nil
}

// isBlank says whether a document has nothing but comments and white space.
func isBlank(body string) bool {
	for line := range strings.SplitSeq(body, "\n") {
		if strings.TrimSpace(line) != "" && !isComment(line) {
			return false
		}
	}
	return true
}

// document is one document of a manifest's text.
type document struct {
	body string
	// number counts the documents from 1, before the lines in front of this one.
	number, before int
	origins        origins
}

func parseDocument(d document) (Object, error) {
	problem := Problem{Document: d.number, Line: d.origins.of(d.before + 1)}
	content := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(d.body), &content); err != nil {
		var line int
		line, problem.Message = yamlProblem(err)
		problem.Line = d.origins.of(d.before + line)
		return Object{}, problem
	}
	places := placesOf(d.body, "", d.before)
	if first, ok := places[""]; ok {
		problem.Line = d.origins.of(first.line)
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if text, _ := content[field].(string); text == "" {
			problem.Message = field + " is missing"
			return Object{}, problem
		}
	}
	u := &unstructured.Unstructured{}
	// The JSON round trip gives the numeric types that unstructured content must
	// have; yaml answers float64 for every number.
	raw, err := yaml.YAMLToJSON([]byte(d.body))
	if err == nil {
		err = u.UnmarshalJSON(raw)
	}
	if err != nil {
		problem.Message = "this is not a Kubernetes object: " + err.Error()
		return Object{}, problem
	}
	switch {
	case u.IsList():
		problem.Message = "a List is not taken: write its items as documents of their own"
	case u.GetName() == "":
		problem.Message = u.GetKind() + " has no metadata.name"
	default:
		return Object{Unstructured: u, Document: d.number, Line: problem.Line, places: places, origins: d.origins}, nil
	}
	return Object{}, problem
}

// yamlLine finds the line that a YAML error speaks of.
var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlProblem answers the line, from 1, of the document that a YAML error speaks
// of, and its message without it.
func yamlProblem(err error) (int, string) {
	message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	message = strings.TrimPrefix(message, "yaml: ")
	match := yamlLine.FindStringSubmatchIndex(message)
	if match == nil {
		return 1, message
	}
	var line int
	if _, scanErr := fmt.Sscanf(message[match[2]:match[3]], "%d", &line); scanErr != nil {
		return 1, message
	}
	return line, message[:match[0]] + message[match[1]:]
}

func (m *Manifest) duplicates() []error {
	seen := map[string]int{}
	var problems []error
	for _, o := range m.Objects {
		key := o.GroupVersionKind().GroupKind().String() + " " + o.GetNamespace() + "/" + o.GetName()
		if first, ok := seen[key]; ok {
			problems = append(problems, Problem{Document: o.Document, Line: o.Line, Object: o.Ref(), Message: fmt.Sprintf("the same object is already in document %d", first)})
			continue
		}
		seen[key] = o.Document
	}
	return problems
}
